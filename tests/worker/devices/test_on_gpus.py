"""Replicas on GPUs as the agent runs them: what an engine sees, and what happens when a card vanishes. The driver is a
fake below its real binding, the engines are the fake one, which uses no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rewarm.states import FailureReason, ReplicaState
from tests.worker.conftest import RunRig, until
from tests.worker.devices.fake_nvml import GIB, Card, driver

pytestmark = [pytest.mark.redis, pytest.mark.timeout(90), pytest.mark.asyncio]
S = ReplicaState
ONE, TWO = "GPU-11111111-aaaa", "GPU-22222222-bbbb"


def environment(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(entry.decode().split("=", 1) for entry in entries if b"=" in entry)


async def test_a_card_that_vanishes_takes_its_replicas_along_and_nobody_else(rig: RunRig) -> None:
    with driver(Card(ONE), Card(TWO)) as fake:
        async with rig(memory="20GiB") as r:
            lost = await r.ready("card-1")
            stays = await r.ready("card-2")
            assert [set(report.needs) for report in (lost, stays)] == [{"ram", ONE}, {"ram", TWO}]
            assert environment(lost.pid)["CUDA_VISIBLE_DEVICES"] == ONE, "it sees its own only"
            beat = await r.beat()
            assert beat is not None
            promised = {device.id: device.promised_bytes for device in beat.devices}
            assert promised[ONE] == promised[TWO] == 20 * GIB
            fake.cards[0].lost = True
            failed = await r.reaches("card-1", S.FAILED)
            assert failed.failure.reason is FailureReason.DEVICE_LOST
            assert failed.failure.message.startswith("GPU 0 is lost: ")
            beat = await r.beat()
            assert beat is not None
            states = {device.id: (device.state, device.budget_bytes > 0) for device in beat.devices}
            assert states == {"ram": ("ok", True), ONE: ("lost", False), TWO: ("ok", True)}
            assert (await r.chat(stays.endpoint))[0] == 200
            await r.unwant("card-1")
            await r.want("card-3")
            refused = await r.reaches("card-3", S.FAILED)
            assert refused.failure.reason is FailureReason.NO_ROOM, "the other card is taken"
            fake.cards[0].lost = False

            async def back() -> bool:
                told = await r.beat()
                return told is not None and all(device.state == "ok" for device in told.devices)

            await until(back, "it answers again and is taken back")


async def test_what_never_fits_a_card_fails_at_once_and_ram_is_another_matter(rig: RunRig) -> None:
    with driver(Card(ONE, total=8 * GIB)):
        async with rig(memory="10GiB") as r:
            await r.want("card-1")
            failed = await r.reaches("card-1", S.FAILED, 5)
            assert failed.failure.reason is FailureReason.NEVER_FITS
            assert (
                "needs 10.0 GiB, as configured; this worker's whole budget of GPU 0 is 7.6 GiB"
                in failed.failure.message
            )
        async with rig(memory="200MiB", device="ram") as r:
            report = await r.ready("card-1")
            assert set(report.needs) == {"ram"}
            assert environment(report.pid)["CUDA_VISIBLE_DEVICES"] == ""


async def test_only_the_devices_that_the_configuration_lists(rig: RunRig) -> None:
    with driver(Card(ONE), Card(TWO)):
        worker = json.dumps({"devices": [{"id": 1, "memory": "4GiB"}]})
        async with rig(memory="3GiB", worker=worker) as r:
            assert set((await r.ready("card-1")).needs) == {"ram", TWO}
            beat = await r.beat()
            assert beat is not None
            assert [(device.id, device.index) for device in beat.devices] == [("ram", None), (TWO, 1)]
            assert beat.devices[1].budget_bytes == 4 * GIB
