"""What a cold start was made of, wherever it is told: header, stream, receipt, jobs, metrics, the operators' page."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from fleet import Wakes
from gateway.wakes import WakesOfJobs
from rewarm.config import TracingConfig
from rewarm.errors import QueueUnavailable
from rewarm.jobs import Job, JobSpec, JobState
from rewarm.messages import PhaseTiming, ReplicaReport, Wake, WakeRecord
from rewarm.states import ReplicaState, Tier
from rewarm.tracing import Tracing
from rewarm.wakes import wake_of, words
from tests.gateway.test_cold_path import waiting
from tests.gateway.world import CONFIG, World, chat, config, until

redis = pytest.mark.redis

TIMINGS = (
    PhaseTiming(phase=ReplicaState.STARTING, started_s=0.0, duration_s=0.3),
    PhaseTiming(phase=ReplicaState.RESTORING, started_s=0.3, duration_s=0.1, bytes=200_000_000),
)
WOKEN: dict[str, Any] = {
    "ready_at_ms": 5000,
    "tier": Tier.POOLED,
    "tier_reason": 'no "ready" process, one was forked',
    "weights": "packed m@1",
    "cause": "1 waiting",
    "timings": TIMINGS,
    "eta_error": -0.25,
}


async def woken(world: World, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    """A request that waits for ``m`` until it is woken, and its answer."""
    async with asyncio.TaskGroup() as group:
        held = group.create_task(world.post(chat(), headers))
        await waiting(world, 1)
        await world.ready("m", **{**WOKEN, **fields})
    return held.result()


async def record(world: World) -> None:
    wake = wake_of(world.worker, world.reports["m"])
    assert wake is not None
    await Wakes(world.client).record(wake)


# --- where it is told ------------------------------------------------------------------------------------------------


@redis
@pytest.mark.asyncio
async def test_the_answer_says_in_its_header_what_the_wake_was_made_of(world: World) -> None:
    answer = await woken(world)
    told = answer.headers["Server-Timing"]
    assert 'wake;dur=400;desc="pooled (no _ready_ process, one was forked), packed m@1, ' in told
    assert "at 2.00 GB/s" in told
    assert "starting;dur=300, restoring;dur=100, engine;dur=" in told
    warm = await world.post(chat())
    assert "wake" not in warm.headers["Server-Timing"], "the next one did not wait"


@redis
@pytest.mark.asyncio
async def test_the_receipt_has_all_of_it(world: World) -> None:
    answer = await woken(world)
    receipt = (await world.get(f"/v1/requests/{answer.headers['X-Request-Id']}")).json
    assert receipt["worker"] == world.worker
    assert receipt["tier"] == "pooled"
    wake = receipt["wake"]
    assert (wake["duration_s"], wake["bytes"], wake["gb_per_s"]) == (0.4, 200_000_000, 2.0)
    assert (wake["cause"], wake["weights"], wake["eta_error"]) == ("1 waiting", "packed m@1", -0.25)
    assert [timing["phase"] for timing in wake["timings"]] == ["starting", "restoring"]
    warm = await world.post(chat())
    assert (await world.get(f"/v1/requests/{warm.headers['X-Request-Id']}")).json["wake"] is None


@redis
@pytest.mark.asyncio
async def test_a_stream_that_has_begun_is_told_before_its_data(world: World) -> None:
    lines: list[str] = []

    async def client() -> None:
        async for line in world.lines(chat(), {"X-Rewarm-Progress": "chunks"}):
            lines.append(line)  # noqa: PERF401  # seen as they come

    async with asyncio.TaskGroup() as group:
        group.create_task(client())
        await waiting(world, 1)
        await world.loading("m", phase=ReplicaState.RESTORING, fraction=0.5)
        await until(lambda: any("restoring" in line for line in lines), "progress is shown")
        await world.ready("m", **WOKEN)
    running = [json.loads(line[6:])["rewarm"] for line in lines if '"state":"running"' in line.replace(" ", "")]
    assert running[0]["wake"] == {
        "tier": "pooled",
        "tier_reason": WOKEN["tier_reason"],
        "weights": "packed m@1",
        "bytes": 200_000_000,
        "gb_per_s": 2.0,
        "duration_s": 0.4,
    }


@redis
@pytest.mark.asyncio
async def test_metrics_count_each_wake_once_and_show_how_far_etas_are_off(world: World) -> None:
    def samples(text: str) -> dict[tuple[str, ...], float]:
        families = text_string_to_metric_families(text)
        return {(s.name, *sorted(s.labels.values())): s.value for family in families for s in family.samples}

    gate = await world.ready("m")
    await world.known("m")
    for number, error in enumerate((-0.25, 0.1, None, 0.15)):
        world.reports["m"] = ReplicaReport(
            replica="m-1",
            model="m",
            spec_hash="x",
            state=ReplicaState.READY,
            term=1,
            endpoint=gate.endpoint,
            **{**WOKEN, "ready_at_ms": 5000 + number, "eta_error": error},
        )
        await world.beat()
        await world.gateways[0].view.refresh()
        await world.gateways[0].view.refresh()
    seen = samples((await world.get("/metrics")).body.decode())
    assert seen["rewarm_wake_seconds_count", "m", "pooled"] == 4
    assert seen["rewarm_eta_error", "m", "pooled"] == 0.15
    late = await world.gateway()
    await world.known("m")
    assert b"rewarm_eta_error{" not in late.metrics.exposition(), "older than this gateway: not its to count"


# --- the page behind `rewarm ps --last` ------------------------------------------------------------------------------


@redis
@pytest.mark.asyncio
async def test_the_page_lists_wakes_with_those_that_waited(world: World) -> None:
    answer = await woken(world)
    await record(world)

    async def told() -> list[Any]:
        page = (await world.get("/rewarm/v1/wakes?last=5")).json
        return [one for one in page["data"] if one["waited"]]

    (wake,) = await until(told, "the request's receipt is written")
    assert (wake["replica"], wake["model"], wake["tier"], wake["waited"]) == ("m-1", "m", "pooled", 1)
    assert wake["waiters"][0]["id"] == answer.headers["X-Request-Id"]
    assert wake["waiters"][0]["waited_s"] > 0


@redis
@pytest.mark.asyncio
async def test_who_waited_is_told_to_operators_and_to_each_key_of_its_own(make_world: Any) -> None:
    keys = "".join(
        f"  - {{name: {name}, sha256: {hashlib.sha256(name.encode()).hexdigest()}{more}}}\n"
        for name, more in (("alice", ""), ("bob", ""), ("root", ", operator: true"))
    )
    world: World = await make_world(config(CONFIG + "keys:\n" + keys))
    await world.gateway()
    await world.known("m", "cold")
    await woken(world, {"Authorization": "Bearer alice"})
    await record(world)

    async def page(key: str) -> Any:
        return (await world.get("/rewarm/v1/wakes", {"Authorization": f"Bearer {key}"})).json["data"]

    async def written() -> bool:
        return bool((await page("root"))[0]["waited"])

    await until(written, "the receipt is written")
    assert [one["tenant"] for one in (await page("root"))[0]["waiters"]] == ["alice"]
    assert len((await page("alice"))[0]["waiters"]) == 1
    assert ((await page("bob"))[0]["waited"], (await page("bob"))[0]["waiters"]) == (1, [])
    assert (await world.get("/rewarm/v1/wakes")).status == 401


@redis
@pytest.mark.asyncio
@pytest.mark.parametrize("last", ["0", "201", "-1", "x", "", "٣"])
async def test_a_wrong_number_is_refused(world: World, last: str) -> None:
    answer = await world.get(f"/rewarm/v1/wakes?last={last}")
    assert (answer.status, answer.code) == (400, "invalid_request")


# --- jobs ------------------------------------------------------------------------------------------------------------


class _View:
    def __init__(self, *reports: ReplicaReport) -> None:
        self.reports = {report.replica: report for report in reports}

    def located(self, replica: str) -> tuple[str, ReplicaReport | None]:
        return "w", self.reports.get(replica)


class _Store:
    def __init__(self, *wakes: Wake, away: bool = False) -> None:
        self.wakes, self.away, self.asked = wakes, away, 0

    async def last(self, limit: int) -> list[WakeRecord]:
        raise AssertionError("not for jobs")

    async def of(self, replica: str) -> list[WakeRecord]:
        self.asked += 1
        if self.away:
            raise QueueUnavailable("away")
        return [WakeRecord(wake=wake) for wake in self.wakes]


def job(created_ms: int, started_ms: int | None) -> Job:
    spec = JobSpec(id="job_1", tenant="t", model="m", asked_model="m", path="/v1/chat/completions")
    replica = None if started_ms is None else "m-1"
    state = JobState.QUEUED if started_ms is None else JobState.COMPLETED
    return Job(spec=spec, state=state, created_ms=created_ms, started_ms=started_ms, replica=replica)


def ready(at_ms: int) -> ReplicaReport:
    return ReplicaReport(
        replica="m-1", model="m", spec_hash="x", state=ReplicaState.READY, term=1, **{**WOKEN, "ready_at_ms": at_ms}
    )


async def wake_for(given: Job, view: _View, store: _Store) -> int | None:
    wake = await WakesOfJobs(view, store).of(given)  # type: ignore[arg-type]  # what it needs of a view
    return None if wake is None else wake.ready_at_ms


def kept(at_ms: int) -> Wake:
    wake = wake_of("w", ready(at_ms))
    assert wake is not None
    return wake


@pytest.mark.asyncio
async def test_a_job_is_told_the_wake_that_it_waited_for() -> None:
    assert await wake_for(job(1000, 6000), _View(ready(5000)), _Store()) == 5000
    assert await wake_for(job(5500, 6000), _View(ready(5000)), _Store()) is None, "the model was ready when it came"
    assert await wake_for(job(1000, None), _View(ready(5000)), _Store()) is None, "it still waits"


@pytest.mark.asyncio
async def test_once_the_replica_is_gone_or_has_woken_again_redis_remembers() -> None:
    store = _Store(kept(9000), kept(5000), kept(500))
    assert await wake_for(job(1000, 6000), _View(), store) == 5000
    assert await wake_for(job(1000, 6000), _View(ready(9000)), store) == 5000
    assert await wake_for(job(1000, 6000), _View(), _Store(away=True)) is None


@pytest.mark.asyncio
async def test_redis_is_asked_once_for_each_job() -> None:
    store = _Store(kept(5000))
    wakes = WakesOfJobs(_View(), store)  # type: ignore[arg-type]  # what it needs of a view
    for _ in range(3):
        assert await wakes.of(job(1000, 6000)) is not None
    assert store.asked == 1


# --- in words --------------------------------------------------------------------------------------------------------


def test_a_wake_in_one_line() -> None:
    assert words(kept(5000)) == ('pooled (no "ready" process, one was forked), packed m@1, 190.7 MiB at 2.00 GB/s')
    bare = Wake(replica="r", worker="w", model="m", ready_at_ms=1)
    assert words(bare) == "cold"


def test_a_replica_that_was_never_ready_has_no_wake() -> None:
    assert wake_of("w", ready(0)) is None


# --- traces ----------------------------------------------------------------------------------------------------------


@redis
@pytest.mark.asyncio
async def test_a_request_s_spans_and_the_context_that_its_engine_is_sent(make_world: Any) -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(TracingConfig(endpoint="http://x"), role="gateway", instance="i", exporter=exporter)
    world: World = await make_world()
    await world.gateway(tracing=tracing)
    await world.known("m", "cold")
    mine = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = await woken(world, {"traceparent": mine}, ready_at_ms=await world.client.time_ms())
    await asyncio.to_thread(tracing.close)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"POST /v1/chat/completions", "queue", "wake m", "starting", "restoring", "engine"}
    root = spans["POST /v1/chat/completions"]
    assert root.attributes is not None
    assert root.attributes["rewarm.request"] == answer.headers["X-Request-Id"]
    assert root.context is not None
    sent = world.gates["m-1"].requests[0][0].getall("traceparent")
    assert sent == [f"00-0af7651916cd43dd8448eb211c80319c-{root.context.span_id:016x}-01"], "ours, and only ours"


@redis
@pytest.mark.asyncio
async def test_an_eta_is_counted_down_between_two_words_of_its_worker(world: World) -> None:
    view = world.gateways[0].view
    told_at = await world.client.time_ms() - 2000
    await world.loading("m", phase=ReplicaState.RESTORING, fraction=0.5, eta_s=10.0, at_ms=told_at)
    await world.known("m", "loading")
    first = view.progress("m")
    elapsed_s = (await world.client.time_ms() - told_at) / 1000
    assert first is not None
    assert first.eta_s is not None
    assert 10.0 - elapsed_s - 0.1 <= first.eta_s <= 8.1

    def less() -> bool:
        now = view.progress("m")
        return now is not None and now.eta_s is not None and now.eta_s < first.eta_s - 0.05  # type: ignore[operator]

    await until(less, "it goes on falling")
    await world.loading("m", phase=ReplicaState.RESTORING, fraction=0.5, eta_s=0.5, at_ms=told_at, seq=1)

    def over() -> bool:
        now = view.progress("m")
        return now is not None and now.eta_s == 0.0

    await until(over, "but not below zero")
