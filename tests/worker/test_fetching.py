"""A model of a hub: its first load downloads it, as a phase of its own; the next one takes what is there."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rewarm.states import FailureReason, ReplicaState
from tests.snapshots.hub_server import Hub, serving
from tests.worker.conftest import RunRig, fake_command, until

pytestmark = [pytest.mark.redis, pytest.mark.timeout(90)]
S = ReplicaState

REPLICA = f"f-{os.getpid()}"
WEIGHTS = os.urandom(24 * 2**20)
MODEL = {"command": fake_command("--read-file", "${SOURCE}", "--read-mbps", "500"), "source": "hf:org/tiny/a.gguf"}


@pytest_asyncio.fixture
async def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hub]:
    async with serving(Hub({"a.gguf": WEIGHTS, "b.gguf": b"other"})) as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
        yield found


@pytest.mark.asyncio
async def test_the_first_load_fetches_and_the_next_does_not(rig: RunRig, hub: Hub) -> None:
    async with rig(**MODEL) as r:
        seen: set[tuple[int, int]] = set()
        await r.want(REPLICA)

        async def ready() -> bool:
            view = await r.registry.snapshot()
            progress = view.progress.get(REPLICA)
            if progress is not None and progress.phase is S.FETCHING:
                seen.add((progress.bytes_done, progress.bytes_total))
            report = await r.report(REPLICA)
            return report is not None and report.state is S.READY

        await until(ready, "ready", 40)
        report = await r.report(REPLICA)
        phases = {timing.phase: timing for timing in report.timings}
        assert phases[S.FETCHING].bytes == len(WEIGHTS)
        assert report.timings[0].phase is S.FETCHING
        assert all(total in (0, len(WEIGHTS)) for _, total in seen)

        second = f"{REPLICA}-2"
        await r.want(REPLICA, S.STOPPED)
        await r.want(second)
        await r.reaches(second, S.READY, 30)
        again = await r.report(second)
        assert S.FETCHING not in {timing.phase for timing in again.timings}
        assert hub.sent_bytes == len(WEIGHTS)


@pytest.mark.asyncio
async def test_a_gated_model_is_refused_for_good(rig: RunRig, hub: Hub) -> None:
    hub.gated = True
    async with rig(**MODEL) as r:
        await r.want(REPLICA)
        report = await r.reaches(REPLICA, S.FAILED)
        assert report.failure.reason is FailureReason.SOURCE_REFUSED
        assert "org/tiny is gated" in report.failure.message


@pytest.mark.asyncio
async def test_no_room_on_the_disk_is_known_before_the_download(
    rig: RunRig, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.fetching.PullOptions", _greedy)
    async with rig(**MODEL) as r:
        await r.want(REPLICA)
        report = await r.reaches(REPLICA, S.FAILED)
        assert report.failure.reason is FailureReason.DISK_FULL
        assert "are needed on the disk of" in report.failure.message
        assert hub.sent_bytes == 0


@pytest.mark.asyncio
async def test_a_download_that_is_no_longer_wanted_stops(rig: RunRig, hub: Hub) -> None:
    hub.hang_after = 2**20
    async with rig(**MODEL) as r:
        await r.want(REPLICA)
        await until(lambda: hub.sent_bytes >= 2**20, "it downloads")
        await r.want(REPLICA, S.STOPPED)
        await r.reaches(REPLICA, S.STOPPED, 10)
        await until(lambda: hub.left > 0, "its connection is closed")


def _greedy(**options: object) -> object:
    from snapshots import PullOptions

    return PullOptions(**{**options, "floor_bytes": 2**60})  # type: ignore[arg-type]
