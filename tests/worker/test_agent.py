"""The agent makes the leader's wants so, with a real program as the engine and a real Redis."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import msgspec
import psutil
import pytest

from fleet.client import FleetClient
from fleet.registry import Registry
from rewarm.messages import Grant, decode_gateway_event
from rewarm.states import FailureReason, ReplicaState, Tier
from rewarm.upstream import UpstreamDied
from tests.worker.conftest import RunRig, alive, until

pytestmark = [pytest.mark.redis, pytest.mark.timeout(90)]
S = ReplicaState


def engine_pids(replica: str) -> list[int]:
    out = []
    for process in psutil.Process().children(recursive=True):  # the agent runs in this process
        try:
            if process.environ().get("REWARM_REPLICA") == replica and process.status() != psutil.STATUS_ZOMBIE:
                out.append(process.pid)
        except psutil.Error:
            continue
    return out


@pytest.mark.asyncio
async def test_a_wanted_replica_loads_in_phases_answers_and_is_stopped_without_a_trace(rig: RunRig) -> None:
    async with rig("--start-delay", "0.3") as r:
        fractions = []
        await r.want("m-1")

        async def ready() -> bool:
            view = await r.registry.snapshot()
            if "m-1" in view.progress:
                fractions.append(view.progress["m-1"].fraction)
            report = await r.report("m-1")
            return report is not None and report.state is S.READY

        await until(ready, "ready")
        assert fractions == sorted(fractions)
        assert len(set(fractions)) >= 3
        report = await r.report("m-1")
        phases = [timing.phase for timing in report.timings]
        assert phases == [p for p in (S.STARTING, S.INITIALISING, S.WARMING, S.VERIFYING) if p in phases]
        assert {S.STARTING, S.WARMING, S.VERIFYING} <= set(phases)
        status, _, body = await r.chat(report.endpoint)
        assert status == 200
        assert json.loads(body)["choices"][0]["message"]["content"] == "You said: hello"
        assert len(engine_pids("m-1")) == 2  # the host and the program
        await r.want("m-1", S.STOPPED)
        await r.reaches("m-1", S.STOPPED)
        assert engine_pids("m-1") == []
        assert not list(r.paths.run.glob("m-1.*"))
        await r.unwant("m-1")

        async def forgotten() -> bool:
            return await r.report("m-1") is None

        await until(forgotten, "forgotten")


@pytest.mark.asyncio
async def test_one_that_waits_for_its_next_attempt_does_not_hold_up_the_pool(rig: RunRig) -> None:
    async with rig() as r:
        await r.want("m-1", attempt=2, not_before_ms=2**52)

        async def waits() -> bool:
            view = await r.registry.snapshot()
            return "m-1" in view.progress and view.progress["m-1"].message.startswith("waiting ")

        await until(waits, "it waits")
        assert not r.agent._loading()
        await r.want("m-1", attempt=2)
        await until(lambda: r.agent._loading(), "it loads", 20)
        await r.reaches("m-1", S.READY)
        assert not r.agent._loading()


@pytest.mark.asyncio
async def test_a_load_without_a_download_tells_the_next_ones_that_none_is_to_be_expected(
    rig: RunRig, fleet_client: FleetClient
) -> None:
    await Registry(fleet_client).record_history("w1", "m", Tier.COLD, {"fetching": 600.0, "starting": 1.0})
    async with rig() as r:
        await r.ready()

        async def remembered() -> bool:
            return len((await r.registry.history("w1"))["m", "cold", "fetching"]) > 1

        await until(remembered, "the load is in the history")
        history = await r.registry.history("w1")
        assert history["m", "cold", "fetching"] == (600.0, 0.0)
        assert history["m", "cold", "starting"][1] > 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("knobs", "stalls", "reason", "words"),
    [
        (("--exit-at-start", "3"), {}, FailureReason.ENGINE_EXITED, "exited with status 3"),
        (("--hang-at-start",), {"starting_stall": "6s"}, FailureReason.STALLED, "is closed"),
        (("--open-but-never-ready",), {"initialising_stall": "1s"}, FailureReason.STALLED, "answers 503"),
        (("--fail-status", "500"), {}, FailureReason.VERIFICATION_FAILED, "500"),
    ],
    ids=["exits", "never opens its port", "never ready", "cannot answer"],
)
async def test_a_failed_load_is_classified_and_leaves_nothing(
    rig: RunRig, knobs: tuple[str, ...], stalls: dict[str, str], reason: FailureReason, words: str
) -> None:
    async with rig(*knobs, **stalls) as r:
        await r.want("m-1")
        report = await r.reaches("m-1", S.FAILED)
        assert report.failure.reason is reason
        assert words in report.failure.message
        if reason is FailureReason.ENGINE_EXITED:
            assert "told to exit" in report.failure.log_tail
            assert report.failure.exit_status == 3
        await until(lambda: not engine_pids("m-1"), "nothing is left", 5)


@pytest.mark.asyncio
async def test_a_program_that_does_not_exist_is_refused(rig: RunRig) -> None:
    async with rig(command=["/nonexistent/engine", "${PORT}"]) as r:
        await r.want("m-1")
        report = await r.reaches("m-1", S.FAILED)
        assert report.failure.reason is FailureReason.START_REFUSED
        assert "/nonexistent/engine" in report.failure.message


@pytest.mark.asyncio
async def test_a_model_that_never_fits_says_so_with_the_arithmetic(rig: RunRig) -> None:
    async with rig(memory="64GiB", worker='{"memory": "1GiB"}') as r:
        await r.want("m-1")
        report = await r.reaches("m-1", S.FAILED, 5)
        assert report.failure.reason is FailureReason.NEVER_FITS
        assert "64.0 GiB" in report.failure.message
        assert "1.0 GiB" in report.failure.message


@pytest.mark.asyncio
async def test_the_next_load_waits_for_the_memory_of_the_one_that_stops(rig: RunRig) -> None:
    async with rig("--ignore-sigterm", worker='{"memory": "100MiB"}') as r:
        await r.ready("m-1")
        await r.want("m-1", S.STOPPED)
        await r.want("m-2")
        await r.reaches("m-2", S.READY, 30)
        first = await r.report("m-1")
        assert first.state is S.STOPPED
        assert first.need_bytes == 0


@pytest.mark.asyncio
async def test_memory_that_others_hold_is_no_room(rig: RunRig) -> None:
    async with rig(worker='{"memory": "100MiB"}') as r:
        await r.ready("m-1")
        await r.want("m-2")
        report = await r.reaches("m-2", S.FAILED)
        assert report.failure.reason is FailureReason.NO_ROOM
        assert "m-1" in report.failure.message
        assert (await r.report("m-1")).state is S.READY


@pytest.mark.asyncio
async def test_an_engine_that_dies_while_ready_is_reported_at_once(rig: RunRig) -> None:
    async with rig() as r:
        report = await r.ready()
        program = next(pid for pid in engine_pids("m-1") if pid != report.pid)
        os.kill(program, signal.SIGKILL)
        failed = await r.reaches("m-1", S.FAILED, 5)
        assert failed.failure.reason is FailureReason.ENGINE_EXITED
        assert "SIGKILL" in failed.failure.message
        assert failed.endpoint is None
        await until(lambda: not engine_pids("m-1"), "nothing is left", 5)


@pytest.mark.asyncio
async def test_the_same_replica_starts_again_for_the_next_attempt_only(rig: RunRig) -> None:
    async with rig("--exit-at-start", "3") as r:
        await r.want("m-1")
        await r.reaches("m-1", S.FAILED)
        await r.want("m-1", attempt=1, reason="again")
        await r.want("m-1", attempt=2)

        async def second() -> bool:
            report = await r.report("m-1")
            return report.attempt == 2 and report.state is S.FAILED

        await until(second, "the second attempt failed too")


@pytest.mark.asyncio
async def test_an_older_term_is_refused(rig: RunRig) -> None:
    async with rig() as r:
        await r.ready()
        (want,) = await r.registry.wants("w1")
        stale = msgspec.structs.replace(want, state=S.STOPPED, term=r.term - 1)
        r.agent._carry_out([stale])  # Redis itself would not take it from an old leader any more
        assert r.agent._replicas["m-1"].life.state is S.READY


@pytest.mark.asyncio
async def test_an_idle_stop_is_conditional_on_the_activity_the_leader_saw(rig: RunRig) -> None:
    async with rig() as r:
        report = await r.ready()
        seen = report.last_activity_ms
        assert (await r.chat(report.endpoint))[0] == 200
        await r.want("m-1", S.STOPPED, if_last_activity_ms=seen)

        async def newer() -> int:
            now = await r.report("m-1")
            return now.last_activity_ms if now.last_activity_ms > seen else 0

        current = await until(newer, "the heartbeat tells the new activity")
        assert (await r.report("m-1")).state is S.READY
        await r.want("m-1", S.STOPPED, if_last_activity_ms=current)
        await r.reaches("m-1", S.STOPPED)


@pytest.mark.asyncio
async def test_a_running_stream_outlives_the_drain_and_a_new_request_is_refused(rig: RunRig) -> None:
    async with rig() as r:
        report = await r.ready()
        stream = await r.stream(report.endpoint, stream=True, fake={"tokens": 40, "token_delay": 0.05})
        await r.want("m-1", S.STOPPED)
        await r.reaches("m-1", S.DRAINING)
        status, headers, _ = await r.chat(report.endpoint)
        assert (status, headers[b"x-rewarm-busy"]) == (503, b"draining")
        text = await stream.read(2**20)
        assert text.rstrip().endswith(b"data: [DONE]")
        assert b"word39" in text
        await r.reaches("m-1", S.STOPPED)


@pytest.mark.asyncio
async def test_a_want_for_ready_during_the_drain_cancels_it(rig: RunRig) -> None:
    async with rig() as r:
        report = await r.ready()
        stream = await r.stream(report.endpoint, stream=True, fake={"stall_after": 1})
        await r.want("m-1", S.STOPPED)
        await r.reaches("m-1", S.DRAINING)
        await r.want("m-1", S.READY)
        again = await r.reaches("m-1", S.READY)
        assert again.pid == report.pid
        assert (await r.chat(report.endpoint))[0] == 200
        stream.abort()


@pytest.mark.asyncio
async def test_the_drain_deadline_ends_a_stream_that_does_not(rig: RunRig) -> None:
    async with rig(drain_deadline="1s") as r:
        report = await r.ready()
        stream = await r.stream(report.endpoint, stream=True, fake={"stall_after": 1})
        await r.want("m-1", S.STOPPED)
        await r.reaches("m-1", S.STOPPED)
        with pytest.raises(UpstreamDied):
            await stream.read(2**20)


@pytest.mark.asyncio
async def test_held_tickets_get_as_many_grants_as_there_are_slots(rig: RunRig) -> None:
    async with rig(slots=2) as r:
        for i in range(5):
            await r.enqueue(f"req-{i}")
        report = await r.ready()

        async def grants() -> list[Grant]:
            entries = await r.client.redis.xrange(r.client.keys.grants("gw-1"))
            events = [decode_gateway_event(fields[b"e"]) for _, fields in entries]
            return [event for event in events if isinstance(event, Grant)]

        async def two() -> bool:
            return len(await grants()) >= 2

        await until(two, "two grants")
        assert [grant.ticket for grant in (await grants())[:2]] == ["req-0", "req-1"]
        status, headers, _ = await r.chat(report.endpoint)
        assert status == 503
        assert headers[b"x-rewarm-busy"] in (b"full", b"waiting")

        async def redeemed() -> Grant | None:
            """A grant that nobody redeems within two seconds goes back, and its ticket, still the first, gets another:
            on a machine that stands still for as long it is that one."""
            granted = [grant for grant in await grants() if grant.ticket == "req-0"][-1]
            ok = await r.chat(report.endpoint, headers={"X-Rewarm-Grant": granted.grant})
            return granted if ok[0] == 200 and await r.queue.redeem(granted.ticket, granted.grant) else None

        first: Grant = await until(redeemed, "the first ticket's grant is let in")

        async def next_in_line() -> bool:
            return "req-2" in {grant.ticket for grant in await grants()}

        await until(next_in_line, "the freed slot goes to the next ticket")
        used = await r.chat(report.endpoint, headers={"X-Rewarm-Grant": first.grant})
        assert (used[0], used[1][b"x-rewarm-busy"]) == (503, b"grant")
        for i in range(5):
            await r.queue.cancel(f"req-{i}")


@pytest.mark.asyncio
async def test_a_client_that_leaves_frees_its_slot_and_the_engine_stops(rig: RunRig) -> None:
    async with rig(slots=1) as r:
        report = await r.ready()
        stream = await r.stream(report.endpoint, stream=True, fake={"stall_after": 1})
        assert (await r.chat(report.endpoint))[1][b"x-rewarm-busy"] == b"full"
        stream.abort()

        async def served() -> bool:
            return bool((await r.chat(report.endpoint))[0] == 200)

        await until(served, "the slot is free", 5)


@pytest.mark.asyncio
async def test_an_engine_stopped_in_mid_stream_is_found_to_hang(rig: RunRig) -> None:
    async with rig(answer_stall="2s") as r:
        report = await r.ready()
        stream = await r.stream(report.endpoint, stream=True, fake={"tokens": 1000, "token_delay": 0.05})
        program = next(pid for pid in engine_pids("m-1") if pid != report.pid)
        os.kill(program, signal.SIGSTOP)
        failed = await r.reaches("m-1", S.FAILED, 15)
        assert failed.failure.reason is FailureReason.STALLED
        await until(lambda: not alive(program), "the stopped program is gone", 5)
        stream.abort()


@pytest.mark.asyncio
async def test_a_host_that_is_stopped_is_found_to_hang(rig: RunRig) -> None:
    async with rig(answer_stall="2s") as r:
        report = await r.ready()
        os.kill(report.pid, signal.SIGSTOP)
        failed = await r.reaches("m-1", S.FAILED, 15)
        assert failed.failure.reason is FailureReason.STALLED
        await until(lambda: not engine_pids("m-1"), "nothing is left", 5)


@pytest.mark.asyncio
async def test_what_escapes_into_a_session_of_its_own_ends_with_the_replica(rig: RunRig) -> None:
    async with rig("--fork-child") as r:
        await r.ready()
        assert len(engine_pids("m-1")) == 3
        await r.want("m-1", S.STOPPED)
        await r.reaches("m-1", S.STOPPED)
        assert engine_pids("m-1") == []


@pytest.mark.asyncio
async def test_a_want_to_stop_what_is_not_here_is_answered(rig: RunRig) -> None:
    async with rig() as r:
        await r.want("m-unknown", S.STOPPED)
        await r.reaches("m-unknown", S.STOPPED, 5)


@pytest.mark.asyncio
async def test_sigterm_drains_tells_and_leaves_last(rig: RunRig) -> None:
    async with rig() as r:
        report = await r.ready()
        stream = await r.stream(report.endpoint, stream=True, fake={"tokens": 30, "token_delay": 0.05})
        r.agent.stop()

        async def draining() -> bool:
            beat = await r.beat()
            return beat is not None and beat.draining

        await until(draining, "the heartbeat says that it drains")
        assert (await stream.read(2**20)).rstrip().endswith(b"data: [DONE]")

        async def left() -> bool:
            return await r.beat() is None

        await until(left, "the heartbeat is gone")
        assert engine_pids("m-1") == []


@pytest.mark.asyncio
async def test_progress_counts_the_bytes_the_engine_reads(rig: RunRig, tmp_path: Path) -> None:
    weights = tmp_path / "weights.bin"
    weights.write_bytes(os.urandom(24 * 2**20))
    knobs = ("--read-file", str(weights), "--read-mbps", "16")
    async with rig(*knobs, source=str(weights)) as r:
        await r.want("m-1")
        seen: set[int] = set()

        async def ready() -> bool:
            view = await r.registry.snapshot()
            progress = view.progress.get("m-1")
            if progress is not None and progress.phase is S.RESTORING:
                seen.add(progress.bytes_done)
                assert progress.bytes_total == weights.stat().st_size
            report = await r.report("m-1")
            return report is not None and report.state is S.READY

        await until(ready, "ready")
        assert len(seen) >= 3
        report = await r.report("m-1")
        restoring = next(t for t in report.timings if t.phase is S.RESTORING)
        assert restoring.bytes == weights.stat().st_size
