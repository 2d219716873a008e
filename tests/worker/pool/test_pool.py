"""A pool is filled, hands out processes, and what goes wrong in it makes a start plain, never a failure."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from pathlib import Path

import msgspec
import pytest

from rewarm.states import Tier
from snapshots import THROTTLE_ENV
from tests.worker.conftest import until
from tests.worker.pool.rig import TOY, Rig, descriptors_left, pooled, spec
from worker.engines.hostfile import HOST_MODULES, write_host_file
from worker.memory import Holding
from worker.pool import making
from worker.pool.kind import key
from worker.pool.plan import ANY
from worker.pool.pool import NotPooled, Pool
from worker.pool.starter import PooledStarter
from worker.procs import environment_has
from worker.starting import Order

pytestmark = pytest.mark.asyncio


async def test_a_host_comes_from_the_process_that_was_prepared_for_its_model(toy: Path) -> None:
    async with pooled(toy, spec("m"), spec("n")) as rig:
        report = await rig.filled()
        assert [(entry.model, entry.state, entry.ready) for entry in report.prepared] == [
            ("m", "ready", 1),
            ("n", "ready", 1),
        ]
        member = await rig.start("m")
        said = await rig.said()
        assert said["prepared"] == "for m"
        assert said["environment"] == "yes"
        assert said["pid"] == member.pid
        assert said["parent"] == os.getpid(), "it is the agent's child, not the zygote's"
        assert said["session"] == member.pid, "it leads a session of its own"
        assert environment_has(member.pid, [b"REWARM_REPLICA=r-1"]), "containment finds it by the replica's name"
        member.send_signal(signal.SIGTERM)
        assert await member.wait() == 0
        assert rig.report().pooled == 1


async def test_a_model_that_is_not_prepared_yet_starts_from_what_all_models_share(toy: Path) -> None:
    async with pooled(toy, spec("m"), models=0) as rig:
        await until(lambda: rig.report().state == "ready", "the zygote is up")
        await rig.start("m")
        assert (await rig.said())["prepared"] is None


async def test_a_changed_checkpoint_is_not_served_from_what_was_prepared_of_the_old_one(toy: Path) -> None:
    source = toy / "checkpoint"
    source.mkdir()
    (source / "config.json").write_text("{}")
    async with pooled(toy, spec("m", source=str(source))) as rig:
        await rig.filled()
        before = key(rig.hosts["m"])
        (source / "config.json").write_text('{"changed": true}')
        assert key(rig.hosts["m"]) != before
        await rig.start("m")
        assert (await rig.said())["prepared"] is None
        rig.register(spec("m", source=str(source)))
        await rig.filled()
        await rig.start("m", "r-2")
        assert (await rig.said("r-2"))["prepared"] == "for m"


async def test_weights_that_one_engine_answered_with_are_told_to_the_next(toy: Path) -> None:
    async with pooled(toy, spec("m")) as rig:
        await rig.filled()
        await rig.start("m")
        assert (await rig.said())["proven"] == []
        rig.pool.proved(rig.hosts["m"], "packed m@packed-1")
        await rig.start("m", "r-2")
        assert (await rig.said("r-2"))["proven"] == ["packed m@packed-1"]


async def test_thirty_in_a_row_leak_no_descriptor_here_there_or_in_the_hosts(toy: Path) -> None:
    async with pooled(toy, spec("m")) as rig:
        await rig.filled()
        # The one that imports, what the model is prepared in, and one ready for it and one for any.
        await until(lambda: len(rig.processes()) == 4, "the pool is whole")
        here = descriptors("self")
        zygote = rig.report().pid
        there = descriptors(zygote)
        told = set()
        for number in range(30):
            member = await rig.start("m", f"r-{number}")
            told.add((await rig.said(f"r-{number}"))["descriptors"])
            member.send_signal(signal.SIGTERM)
            await member.wait()
            await rig.filled()
        assert len(told) == 1, f"each host has as many as the first: {told}"
        # The one that was just asked for something has a channel more for a moment.
        await until(lambda: descriptors("self") <= here, "no descriptor has leaked here")
        await until(lambda: descriptors(zygote) <= there, "nor there")
        assert rig.report().zygotes == 1


def descriptors(pid: object) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def logged(caplog: pytest.LogCaptureFixture, words: str) -> None:
    await until(lambda: words in caplog.text, f"it logs {words!r}")


# --- what goes wrong -------------------------------------------------------------------------------------------------


async def test_a_registration_that_fails_is_told_and_the_model_starts_without_it(toy: Path) -> None:
    async with pooled(toy, spec("broken", "broken"), spec("m")) as rig:
        await rig.filled()
        assert rig.of("broken").state == "refused"
        assert "config.json: no architecture" in rig.of("broken").reason
        assert rig.of("m").state == "ready"
        await rig.start("broken")
        assert (await rig.said())["prepared"] is None, "from what all models share"


async def test_an_engine_that_cannot_be_built_ahead_is_prepared_in_parts(toy: Path) -> None:
    async with pooled(toy, spec("m", "in parts"), build_ahead="auto") as rig:
        await rig.filled()
        assert rig.of("m").state == "ready"
        assert rig.of("m").reason == "prepared in parts: RuntimeError: this one needs threads of its own"
        await rig.start("m")
        assert (await rig.said())["prepared"] == "for m"


async def test_an_engine_that_was_lost_while_it_was_built_ahead_is_built_again_after_a_while(toy: Path) -> None:
    passed_s = 0.0
    async with pooled(toy, spec("m", "lost once"), build_ahead="auto") as rig:
        rig.around.monotonic = lambda: time.monotonic() + passed_s
        await rig.filled()
        in_parts = rig.pool._shelves[key(rig.hosts["m"])]
        assert (rig.of("m").state, rig.of("m").reason[-5:]) == ("ready", "ended")
        rig.pool.proved(rig.hosts["m"], "packed m@packed-1")
        await looked(rig)
        assert rig.pool._shelves[key(rig.hosts["m"])] is in_parts
        passed_s += 15
        await until(lambda: not rig.of("m").reason, "it is built as a whole")
        await rig.filled()
        assert in_parts.source.returncode is not None, "what it replaced is gone"
        assert len(rig.processes()) == 4
        await rig.start("m")
        said = await rig.said()
        assert (said["prepared"], said["proven"]) == ("for m", []), "what was proved was proved of the other"


async def test_an_engine_that_cannot_be_built_ahead_is_not_tried_again(
    toy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pooled(toy, spec("m", "in parts"), build_ahead="auto") as rig:
        await rig.filled()
        rig.around.monotonic = lambda: time.monotonic() + 1e6
        await looked(rig)
        assert caplog.text.count("event=not-built-ahead") == 1


async def test_a_registration_that_dies_each_time_is_tried_ever_more_slowly(
    toy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("worker.pool.pool._EVERY_S", 0.02)
    passed_s = 0.0
    async with pooled(toy, spec("bad", "exit"), build_ahead="off") as rig:
        rig.around.monotonic = lambda: time.monotonic() + passed_s
        for again_in_s in (15, 30, 60, 120):
            await logged(caplog, f"event=not-prepared model=bad again_in_s={again_in_s} ")
            passed_s += again_in_s


async def test_without_building_ahead_nothing_of_it_is_tried(toy: Path) -> None:
    async with pooled(toy, spec("m", "in parts"), build_ahead="off") as rig:
        await rig.filled()
        assert (rig.of("m").state, rig.of("m").reason) == ("ready", "")


@pytest.mark.parametrize("fault", ["exit", "hang"])
async def test_a_registration_that_dies_or_hangs_takes_nothing_with_it(
    toy: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.pool.making.PREPARE_WITHIN_S", 1.0)
    async with pooled(toy, spec("bad", fault), spec("m")) as rig:
        await rig.filled()
        assert rig.of("bad").state == "refused"
        assert rig.of("m").state == "ready"
        assert rig.report().zygotes == 1


async def test_a_preparation_that_leaves_a_thread_is_not_forked_from(toy: Path) -> None:
    async with pooled(toy, spec("bad", "thread")) as rig:
        await rig.filled()
        assert "2 threads run in it" in rig.of("bad").reason


async def test_a_fork_that_would_not_be_safe_is_refused_and_said_why(toy: Path) -> None:
    async with pooled(toy, spec("m"), ready=0) as rig:
        await rig.filled_without_ready()
        (toy / "cuda").touch()
        with pytest.raises(NotPooled, match="a fork would not be safe: CUDA is initialised"):
            await rig.start("m")
        (toy / "cuda").unlink()
        await rig.start("m")
        assert (await rig.said())["prepared"] == "for m"


@pytest.mark.parametrize("left", [0, 2])
async def test_without_a_descriptor_left_the_start_is_not_from_the_pool(toy: Path, left: int) -> None:
    async with pooled(toy, spec("m"), ready=0) as rig:
        await rig.filled_without_ready()
        host = rig.write_host("m", "r-1")
        log = os.open(toy / "engine.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        try:
            with descriptors_left(left), pytest.raises(NotPooled, match="Too many open files"):
                await rig.pool.start(host, str(toy / "r-1.host"), {"REWARM_REPLICA": "r-1"}, log)
        finally:
            os.close(log)
        await rig.start("m")
        assert (await rig.said())["prepared"] == "for m", "nothing was lost by it"


@pytest.mark.parametrize("left", [0, 2])
@pytest.mark.parametrize("missing", ["a process for m", "a model"])
async def test_without_a_descriptor_left_it_keeps_what_it_has_and_grows_later(
    toy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, left: int, missing: str
) -> None:
    monkeypatch.setattr("worker.pool.pool._FIRST_PAUSE_S", 0.1)
    async with pooled(toy, spec("m")) as rig:
        await rig.filled()
        shelf = rig.pool._shelves[key(rig.hosts["m"])]
        zygote = rig.report().pid
        rig.loading = True  # it makes nothing until all descriptors are taken
        if missing == "a model":
            rig.register(spec("m"), spec("n"))
        else:
            os.kill(shelf.ready[0].pid, signal.SIGKILL)
            await until(lambda: not rig.of("m").ready, "its end was seen")
        with descriptors_left(left):
            rig.loading = False
            await logged(caplog, "event=pool-short engine=vllm again_in_s=0 error=no ")
            assert rig.of("m").state == "ready"
        await rig.filled()
        assert (rig.report().pid, rig.report().zygotes) == (zygote, 1)
        assert rig.pool._shelves[key(rig.hosts["m"])] is shelf


@pytest.mark.parametrize("fork", ["first", "second"])
async def test_where_no_process_can_be_made_it_keeps_what_it_has_and_grows_later(
    toy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fork: str
) -> None:
    monkeypatch.setattr("worker.pool.pool._FIRST_PAUSE_S", 0.1)
    async with pooled(toy, spec("m"), ready=0) as rig:
        await rig.filled_without_ready()
        zygote = rig.report().pid
        (toy / "fork-fails").write_text(fork)
        with pytest.raises(NotPooled, match="no fork"):
            await rig.start("m")
        rig.register(spec("m"), spec("n"))
        await logged(caplog, "event=pool-short engine=vllm again_in_s=0 error=no fork")
        assert (rig.of("m").state, rig.report().state) == ("ready", "ready")
        (toy / "fork-fails").unlink()
        await rig.filled_without_ready()
        assert (rig.report().pid, rig.report().zygotes) == (zygote, 1)


async def test_without_a_descriptor_left_other_versions_are_looked_for_later(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.pool.pool.VERSIONS_EVERY_S", 0.0)
    async with pooled(toy, spec("m")) as rig:
        await rig.filled()
        with descriptors_left(0):
            await looked(rig)
        (toy / "version").write_text("2")
        await until(lambda: rig.report().versions == {"toy": "2"}, "it was made of the other version", 30)
        assert rig.report().zygotes == 2


@pytest.mark.parametrize("left", [0, 1, 2])
async def test_a_zygote_that_lacks_descriptors_is_told_and_tried_again(
    toy: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """At the machine's lock, at a look at its memory, at the process's log."""
    monkeypatch.setattr("worker.pool.pool._FIRST_PAUSE_S", 0.1)
    async with pooled(toy) as rig:
        with descriptors_left(left):
            rig.register(spec("m"))
            await until(lambda: rig.report().state == "failed", "it was seen to fail")
            assert "Too many open files" in rig.report().reason
            assert not rig.pool.memory_bytes
        await rig.filled()


@pytest.mark.parametrize(("call", "reason"), [("wire.pair", "has no channel"), ("os.pidfd_open", "cannot be watched")])
async def test_a_zygote_that_lacks_a_descriptor_of_its_own_is_ended(
    toy: Path, monkeypatch: pytest.MonkeyPatch, call: str, reason: str
) -> None:
    def no_descriptor(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with pooled(toy) as rig:
        with monkeypatch.context() as patched:
            patched.setattr(f"worker.pool.member.{call}", no_descriptor)
            rig.register(spec("m"))
            await until(lambda: rig.report().state == "failed", "it was seen to fail")
            assert f"the zygote {reason}: [Errno 24] Too many open files" in rig.report().reason
            await until(lambda: not rig.processes(), "it is gone")
        await rig.filled()


async def test_a_fork_that_hangs_is_given_up_and_the_process_replaced(toy: Path) -> None:
    async with pooled(toy, spec("m"), ready=0, fork_timeout="500ms") as rig:
        await rig.filled_without_ready()
        (toy / "fork-hangs").touch()
        with pytest.raises(NotPooled, match=r"has not answered for 0\.5 s"):
            await rig.start("m")
        (toy / "fork-hangs").unlink()
        assert rig.of("m").state == "refused", "visible meanwhile"
        await rig.start("m")
        assert (await rig.said())["prepared"] is None, "the zygote is well"


async def test_a_process_killed_in_mid_fork_makes_the_start_a_plain_one(toy: Path) -> None:
    async with pooled(toy, spec("m"), ready=0, models=0) as rig:
        await until(lambda: rig.report().state == "ready", "the zygote is up")
        (toy / "fork-dies").touch()
        with pytest.raises(NotPooled, match="the process to fork from"):
            await rig.start("m")
        (toy / "fork-dies").unlink()
        assert rig.report().state == "failed"
        await until(lambda: rig.report().state == "ready", "it was made anew", 30)
        await rig.start("m")
        assert (await rig.said())["pid"]


async def test_engines_survive_the_zygote_and_it_is_made_anew(toy: Path) -> None:
    async with pooled(toy, spec("m")) as rig:
        await rig.filled()
        engine = await rig.start("m")
        await rig.said()
        zygote = rig.report().pid
        assert zygote is not None
        os.kill(zygote, signal.SIGKILL)
        await until(lambda: rig.report().pid not in (None, zygote), "another zygote", 30)
        assert engine.returncode is None
        assert rig.report().zygotes == 2


async def test_what_was_prepared_outlives_the_zygote_too(toy: Path) -> None:
    async with pooled(toy, spec("m")) as rig:
        await rig.filled()
        rig.loading = True  # nothing is made meanwhile
        zygote = rig.report().pid
        assert zygote is not None
        os.kill(zygote, signal.SIGKILL)
        await until(lambda: rig.report().pid is None, "its end was seen")
        await rig.start("m")
        assert (await rig.said())["prepared"] == "for m"


async def test_a_zygote_that_cannot_import_is_told_and_tried_again(toy: Path) -> None:
    (toy / "load-fails").touch()
    async with pooled(toy, spec("m")) as rig:
        await until(lambda: rig.report().state == "failed", "it was seen to fail")
        assert "no module named toy" in rig.report().reason
        with pytest.raises(NotPooled, match="no module named toy"):
            await rig.start("m")
        (toy / "load-fails").unlink()
        await rig.filled()


async def test_a_zygote_that_cannot_import_any_more_is_tried_ever_more_slowly(
    toy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("worker.pool.pool._EVERY_S", 0.02)
    async with pooled(toy, spec("m")) as rig:
        await rig.filled()
        passed_s = 0.0
        rig.around.monotonic = lambda: time.monotonic() + passed_s
        passed_s += 3600  # up for an hour
        (toy / "load-fails").touch()
        os.kill(rig.report().pid or 0, signal.SIGKILL)
        for again_in_s in (2, 4, 8, 16):
            await logged(caplog, f"again_in_s={again_in_s} ")
            passed_s += again_in_s
        (toy / "load-fails").unlink()
        await rig.filled()


async def test_a_second_attempt_never_comes_from_the_pool(toy: Path) -> None:
    async with pooled(toy, spec("m")) as rig:
        await rig.filled()
        with pytest.raises(NotPooled, match="an attempt before this one failed"):
            await rig.start("m", attempt=2)


async def test_other_versions_retire_the_pool_and_leave_engines_alone(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.pool.pool.VERSIONS_EVERY_S", 0.1)
    async with pooled(toy, spec("m")) as rig:
        await rig.filled()
        engine = await rig.start("m")
        (toy / "version").write_text("2")
        await until(lambda: rig.report().versions == {"toy": "2"}, "it was made of the other version", 30)
        assert engine.returncode is None


async def test_switched_off_it_starts_nothing(toy: Path) -> None:
    async with pooled(toy, spec("m"), enabled="off") as rig:
        with pytest.raises(NotPooled, match="switched off"):
            await rig.start("m")
        assert rig.report().state == "off"
        assert not rig.processes()


async def test_its_end_leaves_no_process_and_no_file(toy: Path) -> None:
    async with pooled(toy, spec("m")) as rig:
        await rig.filled()
        await until(lambda: len(rig.processes()) == 4, "the zygote, the model's process, one ready for each")
        run = rig.around.paths.run
    assert not list(run.iterdir())


# --- memory ----------------------------------------------------------------------------------------------------------


async def test_its_memory_is_counted_and_given_back_to_an_engine_that_would_not_fit(toy: Path) -> None:
    async with pooled(toy, spec("m")) as rig:
        await rig.filled()
        await rig.pool.measure()
        assert rig.around.ledgers.ram.spare.used_bytes == rig.pool.memory_bytes > 0
        assert rig.report().memory_bytes == rig.pool.memory_bytes
        assert await rig.pool.give_back()
        assert rig.around.ledgers.ram.spare == Holding(0)
        await until(lambda: not rig.processes(), "all of it is gone")
        assert not await rig.pool.give_back(), "there is nothing more"


async def test_two_pools_of_one_agent_count_beside_each_other(toy: Path) -> None:
    async with pooled(toy, spec("m")) as rig:
        await rig.filled()
        await rig.pool.measure()
        other = Pool("torch", rig.around, module=TOY)
        await other.measure()  # as upkeep does, of all in turn
        assert not await other.give_back()
        assert rig.around.ledgers.ram.spare.used_bytes == rig.pool.memory_bytes > 0


async def test_only_the_time_that_it_may_run_counts_as_an_imports(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped while an engine loads, however long that takes."""
    monkeypatch.setattr(making, "IMPORT_WITHIN_S", 0.5)
    monkeypatch.setattr(making, "_LOOK_EVERY_S", 0.01)
    (toy / "load-hangs").touch()
    async with pooled(toy) as rig:
        looks = 0

        def loading() -> bool:
            nonlocal looks
            looks += 1
            return looks < 200

        monkeypatch.setattr(rig.pool._make, "_loading", loading)
        rig.register(spec("m"))
        await until(lambda: bool(rig.processes()), "it imports")
        first = [process.pid for process in rig.processes()]
        await until(lambda: looks >= 190, "it has been stopped for much longer than an import may take")
        assert [process.pid for process in rig.processes()] == first
        await until(lambda: rig.report().state == "failed", "it hangs when it may run, too")
        assert "has not answered for 0.5 s" in rig.report().reason


async def test_memory_that_an_import_waits_with_is_given_to_the_load_that_it_waits_for(toy: Path) -> None:
    """An import is stopped while an engine loads; an engine that finds no room beside it would not end its load."""
    (toy / "load-hangs").touch()
    async with pooled(toy, spec("m")) as rig:
        await until(lambda: rig.report().state == "starting" and rig.processes() != [], "it imports")
        rig.loading = True
        assert rig.around.ledgers.ram.spare != Holding(0)
        assert await rig.pool.give_back()
        assert rig.around.ledgers.ram.spare == Holding(0)
        await until(lambda: not rig.processes(), "it is gone")
        await until(lambda: rig.report().reason == "its memory was needed for an engine", "it says so")
        (toy / "load-hangs").unlink()
        rig.loading = False
        await rig.filled()


async def test_without_room_there_is_no_pool_and_it_says_so(toy: Path) -> None:
    async with pooled(toy) as rig:
        rig.around.ledgers.ram.budget_bytes = 2**20
        rig.register(spec("m"))
        await until(lambda: rig.report().state == "no_room", "it found no room")
        assert "no memory for the pool" in rig.report().reason
        assert not rig.processes()


async def test_over_its_limit_it_keeps_fewer_models(toy: Path) -> None:
    async with pooled(toy, spec("m"), spec("n")) as rig:
        await rig.filled()
        rig.pool.memory_bytes = 2**50  # as if measured
        await until(lambda: rig.of("n").state == "waiting", "one was given up")
        assert rig.of("m").state == "ready"


async def test_over_its_limit_once_it_keeps_as_many_again_when_the_models_change(toy: Path) -> None:
    async with pooled(toy, spec("m"), spec("n"), spec("heavy")) as rig:
        await rig.filled()
        rig.pool.memory_bytes = 2**50  # as if measured
        await until(lambda: rig.of("heavy").state == "waiting", "one was given up")
        rig.register(spec("m"), spec("n"), spec("o"))
        await rig.filled()


async def test_over_its_limit_once_it_keeps_as_many_again_when_it_is_made_anew(toy: Path) -> None:
    async with pooled(toy, spec("m"), spec("n")) as rig:
        await rig.filled()
        rig.pool.memory_bytes = 2**50  # as if measured
        await until(lambda: rig.of("n").state == "waiting", "one was given up")
        assert await rig.pool.give_back()
        await rig.filled()


async def test_a_zygote_that_takes_more_than_the_limit_is_not_made_again(toy: Path) -> None:
    async with pooled(toy, spec("m"), memory=0) as rig:
        await until(lambda: rig.report().state == "no_room", "it was measured")
        assert "the pool takes more memory than it may" in rig.report().reason
        assert rig.report().reason.endswith("`pool.memory` is 0 B")
        await until(lambda: not rig.processes(), "it is gone")
        with pytest.raises(NotPooled, match=r"`pool\.memory` is 0 B"):
            await rig.start("m")
        rig.around.monotonic = lambda: time.monotonic() + 1e6
        await looked(rig)
        assert (rig.report().state, rig.report().zygotes) == ("no_room", 1)


async def looked(rig: Rig) -> None:
    """It has seen all there is, and found nothing to do."""
    rig.pool._look.set()
    await until(lambda: not rig.pool._look.is_set(), "it looked")
    rig.pool._look.set()
    await until(lambda: not rig.pool._look.is_set(), "it looked once more, with nothing done between")


# --- as a launch uses it ---------------------------------------------------------------------------------------------


async def test_a_starter_says_the_tier_and_why_it_is_no_better(toy: Path) -> None:
    async with pooled(toy, spec("m"), ready=0) as rig:
        await rig.filled_without_ready()
        starter = PooledStarter({"vllm": rig.pool})
        started = await starter.start(_order(rig, "r-1"))
        assert (started.tier, started.why) == (Tier.POOLED, "")
        said = await rig.said()
        assert said["pid"] == started.process.pid
        assert said["throttle"] == "limit-of-r-1", "how fast it may read is told to it as to one that starts plainly"
        (toy / "cuda").touch()
        plain = await starter.start(_order(rig, "r-2"))
        assert plain.tier is Tier.COLD
        assert "CUDA is initialised" in plain.why
        plain.process.send_signal(signal.SIGKILL)
        await plain.process.wait()


def _order(rig: Rig, replica: str) -> Order:
    host = msgspec.structs.replace(rig.hosts["m"], replica=replica, agent_pid=os.getpid())
    write_host_file(rig.folder / f"{replica}.host", host)
    log = os.open(rig.folder / "engine.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    asyncio.get_running_loop().call_later(5, os.close, log)
    environment = {**os.environ, "REWARM_REPLICA": replica, "REWARM_WORKER": rig.around.marker}
    environment[THROTTLE_ENV] = f"limit-of-{replica}"
    return Order(HOST_MODULES["command"], host, rig.folder / f"{replica}.host", environment, log)


async def test_nothing_is_made_while_an_engine_loads(toy: Path) -> None:
    async with pooled(toy) as rig:
        rig.loading = True
        rig.register(spec("m"))
        await asyncio.sleep(0)
        await until(lambda: not rig.pool._look.is_set(), "the change was looked at")
        assert ANY not in rig.pool._shelves
        rig.loading = False
        await rig.filled()
