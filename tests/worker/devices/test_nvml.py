"""GPUs as NVML tells of them: listed, measured, lost and found again. The driver is a fake, the binding is the real
one."""

from __future__ import annotations

import pynvml
import pytest

from rewarm.config import DeviceConfig
from rewarm.errors import DeviceTwice, DeviceUnknown
from tests.worker.devices.fake_nvml import GIB, Card, driver
from worker.devices.device import RAM, Device, Gpu, devices_of, visible
from worker.devices.nvml import SystemNvml
from worker.devices.watch import DeviceWatch
from worker.memory import Machine

MACHINE = Machine(100 * GIB, 90 * GIB)
ONE, TWO = "GPU-11111111-aaaa", "GPU-22222222-bbbb"
GPUS = (Gpu(ONE, 0, "NVIDIA RTX 4090", 24 * GIB), Gpu(TWO, 1, "NVIDIA RTX 4090", 24 * GIB))


def test_without_a_driver_there_are_no_gpus_and_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", missing)
    nvml = SystemNvml()
    assert nvml.gpus() == ()
    assert "NVML" in nvml.why_none


def test_what_nvml_lists_and_measures() -> None:
    with driver(Card(ONE, used={41: 2 * GIB, 42: GIB}), Card(TWO)):
        nvml = SystemNvml()
        assert nvml.gpus() == GPUS
        assert nvml.why_none == ""
        assert nvml.memory(ONE) == Machine(24 * GIB, 21 * GIB)
        assert nvml.used_by(ONE) == {41: 2 * GIB, 42: GIB}
        nvml.close()


@pytest.mark.asyncio
async def test_a_card_that_falls_off_the_bus_is_lost_and_the_others_are_measured() -> None:
    with driver(Card(ONE), Card(TWO, used={7: GIB})) as fake:
        nvml, lost = SystemNvml(), dict[str, str]()
        watch = DeviceWatch(devices_of(None, None, MACHINE, nvml.gpus(), ""), nvml, lost)
        assert set(await watch.read()) == {RAM, ONE, TWO}
        fake.cards[0].lost = True
        assert set(await watch.read()) == {RAM, TWO}
        assert "lost" in lost[ONE]
        assert await watch.used_by([7]) == {TWO: GIB}
        fake.cards[0].lost = False
        assert set(await watch.read()) == {RAM, ONE, TWO}
        assert lost == {}


def test_by_default_all_of_them_with_a_share_as_budget() -> None:
    devices = devices_of(None, None, MACHINE, GPUS, "")
    assert list(devices) == [RAM, ONE, TWO]
    assert devices[RAM].budget_bytes == 80 * GIB
    assert devices[ONE].budget_bytes == int(24 * GIB * 0.95)
    assert devices[ONE].label == "GPU 0"


def test_a_configured_one_is_found_by_index_or_uuid_and_the_rest_are_left_alone() -> None:
    by_index = devices_of([DeviceConfig(id="1", memory=20 * GIB)], 10 * GIB, MACHINE, GPUS, "")
    assert by_index == devices_of([DeviceConfig(id=TWO, memory=20 * GIB)], 10 * GIB, MACHINE, GPUS, "")
    assert by_index == {
        RAM: Device(RAM, 10 * GIB, 100 * GIB),
        TWO: Device(TWO, 20 * GIB, 24 * GIB, "NVIDIA RTX 4090", 1),
    }
    assert list(devices_of([], None, MACHINE, GPUS, "")) == [RAM], "an empty list: no GPUs"


def test_one_that_is_not_there_and_one_given_twice_are_told() -> None:
    with pytest.raises(DeviceUnknown, match="no GPU 2 here: NVML lists 0"):
        devices_of([DeviceConfig(id="2")], None, MACHINE, GPUS, "")
    with pytest.raises(DeviceUnknown, match="no driver"):
        devices_of([DeviceConfig(id="0")], None, MACHINE, (), "no driver")
    with pytest.raises(DeviceTwice, match="GPU 0"):
        devices_of([DeviceConfig(id="0"), DeviceConfig(id=ONE)], None, MACHINE, GPUS, "")


def test_an_engine_sees_its_own_gpus_only() -> None:
    devices = devices_of(None, None, MACHINE, GPUS, "")
    assert visible({RAM: 1, TWO: 2}, devices) == {"CUDA_VISIBLE_DEVICES": TWO}
    assert visible({RAM: 1}, devices) == {"CUDA_VISIBLE_DEVICES": ""}
    assert visible({RAM: 1}, devices_of(None, None, MACHINE, (), "")) == {}
