"""Every model of a catalogue is told of: one that nothing can be prepared for, too, and one that is ready in parts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rewarm.config import parse
from rewarm.messages import PreparedReport, ReplicaSpec
from rewarm.paths import Paths
from tests.snapshots.checkpoints import write_checkpoint
from tests.worker.conftest import until
from tests.worker.pool.rig import TOY
from worker.containment import become_subreaper, members
from worker.pool.keeping import Pools
from worker.run import make_surroundings

pytestmark = pytest.mark.asyncio


class Keeper:
    """An agent's pools, of the toy engine under the name of one that reads its checkpoint's headers first."""

    def __init__(self, pools: Pools) -> None:
        self.pools = pools

    async def register(self, *specs: ReplicaSpec) -> None:
        """As the agent does every few seconds."""
        await self.pools.register({spec.model: spec for spec in specs})

    def of(self, model: str) -> PreparedReport:
        (report,) = self.pools.reports()
        (found,) = (entry for entry in report.prepared if entry.model == model)
        return found

    async def ready(self, model: str) -> PreparedReport:
        await until(lambda: self.of(model).ready, f"a process is ready for {model}", 30)
        return self.of(model)

    @property
    def zygote(self) -> int | None:
        return self.pools.reports()[0].pid


@asynccontextmanager
async def keeping(folder: Path, **config: object) -> AsyncIterator[Keeper]:
    become_subreaper()
    (folder / "version").write_text("1")
    paths = Paths.at(folder / "state")
    paths.make()
    settings = {"state_dir": str(folder / "state"), "worker": {"name": "w1"}, "pool": config}
    async with make_surroundings(parse(json.dumps(settings)), paths) as around:
        pools = Pools(around, lambda: False)
        task = asyncio.create_task(pools.run())
        try:
            yield Keeper(pools)
        finally:
            task.cancel()
            await asyncio.wait((task,))
            await until(lambda: not members([f"REWARM_WORKER={around.marker}"]), "nothing is left")


@pytest.fixture(autouse=True)
def _only_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("worker.pool.keeping", "worker.pool.pool"):
        monkeypatch.setattr(f"{module}.KINDS", {"torch": TOY})


def model(name: str, source: Path | str, *args: str) -> ReplicaSpec:
    return ReplicaSpec(model=name, engine="torch", served_names=(name,), slots=1, source=str(source), args=args)


async def test_a_broken_config_is_told_and_the_model_prepared_once_it_is_mended(toy: Path) -> None:
    source = write_checkpoint(toy / "checkpoint")
    config = source / "config.json"
    whole = config.read_text()
    config.write_text("{")
    async with keeping(toy) as keeper:
        await keeper.register(model("m", source))
        assert keeper.of("m").state == "refused", "also the only model of a pool"
        assert str(config) in keeper.of("m").reason and "not JSON" in keeper.of("m").reason
        assert keeper.zygote is None, "there is nothing to import an engine for"
        config.write_text(whole)
        await keeper.register(model("m", source))
        assert (await keeper.ready("m")).state == "ready"
        assert not keeper.of("m").reason


async def test_weights_that_are_damaged_later_are_told_and_the_others_stay(toy: Path) -> None:
    source, other = write_checkpoint(toy / "checkpoint"), write_checkpoint(toy / "other")
    async with keeping(toy) as keeper:
        await keeper.register(model("m", source), model("other", other))
        await keeper.ready("m")
        await keeper.ready("other")
        with (source / "model.safetensors").open("r+b") as weights:
            weights.truncate(100)
        await keeper.register(model("m", source), model("other", other))
        assert (keeper.of("m").state, keeper.of("m").ready) == ("refused", 0)
        assert "model.safetensors" in keeper.of("m").reason
        assert keeper.of("other").state == "ready"


async def test_a_folder_that_cannot_be_read_is_a_reason_too(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(host: object) -> str:
        raise FileNotFoundError(2, "No such file or directory", "/models/m")

    monkeypatch.setattr("worker.pool.keeping.key", gone)
    async with keeping(toy) as keeper:
        await keeper.register(model("m", write_checkpoint(toy / "checkpoint")))
        assert keeper.of("m").state == "refused"
        assert "No such file or directory: '/models/m'" in keeper.of("m").reason


async def test_weights_that_the_first_load_will_download_are_no_failure(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(toy / "hub"))
    async with keeping(toy) as keeper:
        await keeper.register(model("m", "hf:org/tiny"), model("typo", toy / "nowhere"))
        assert (keeper.of("m").state, keeper.of("m").reason) == ("waiting", "its first load downloads its weights")
        assert keeper.of("typo").state == "refused"
        assert "does not exist" in keeper.of("typo").reason


async def test_a_model_that_left_the_catalogue_is_told_of_no_more(toy: Path) -> None:
    async with keeping(toy) as keeper:
        await keeper.register(model("m", toy / "nowhere"))
        assert keeper.of("m").state == "refused"
        await keeper.register()
        assert keeper.pools.reports() == ()


async def test_one_whose_snapshot_does_not_fit_is_ready_and_says_why_only_in_parts(toy: Path) -> None:
    source = write_checkpoint(toy / "checkpoint")
    async with keeping(toy) as keeper:
        await keeper.register(model("m", source, "unfit"), model("whole", source))
        assert (await keeper.ready("m")).state == "ready"
        assert keeper.of("m").reason == "prepared in parts: its snapshot was made on another CPU"
        assert not (await keeper.ready("whole")).reason


async def test_where_nothing_is_to_be_built_ahead_nothing_is_missed(toy: Path) -> None:
    source = write_checkpoint(toy / "checkpoint")
    async with keeping(toy, build_ahead="off") as keeper:
        await keeper.register(model("m", source, "unfit"))
        assert not (await keeper.ready("m")).reason
