"""``GET /v1/jobs/{id}/events``: the wait, the load and the output as server-sent events, over any number of cuts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rewarm.jobs import JobState
from rewarm.states import ReplicaState
from tests.gateway.jobs_world import Hand, Sse, act, cancel, events, submitted
from tests.gateway.world import World, config, until
from tests.redis_server import LocalRedis

pytestmark = pytest.mark.redis


@pytest.fixture
def hand(world: World) -> Hand:
    return Hand(world)


async def until_event(stream: AsyncIterator[Sse], name: str) -> Sse:
    async with asyncio.timeout(10):
        async for event in stream:
            if event.event == name:
                return event
    raise AssertionError(f"the stream ended without {name!r}")


def words(seen: list[Sse]) -> list[str]:
    return [event.json["word"] for event in seen if event.event == "message"]


async def rest(world: World, id_: str, last: str | None = None) -> list[Sse]:
    """Everything to the end of the stream."""
    async with asyncio.timeout(10), events(world, id_, last) as stream:
        return [event async for event in stream]


@pytest.mark.asyncio
async def test_the_whole_life_of_a_job_in_one_stream(world: World, hand: Hand) -> None:
    id_ = await submitted(world)
    seen: list[Sse] = []

    async def follow() -> None:
        async with events(world, id_) as stream:
            async for event in stream:
                seen.append(event)  # noqa: PERF401 -- seen as they come

    def phases() -> list[str]:
        told = [event.json["progress"]["phase"] for event in seen if event.event == "status"]
        return list(dict.fromkeys(told))

    async with asyncio.TaskGroup() as group:
        group.create_task(follow())
        await until(lambda: phases() == ["cold"], "the wait is told")
        for phase in (ReplicaState.STARTING, ReplicaState.RESTORING, ReplicaState.WARMING):
            await world.loading("m", phase=phase, fraction=0.5)
            await until(lambda phase=phase: phases()[-1] == phase.value, f"{phase.value} is told")  # type: ignore[misc]
        lease = await hand.take()
        await until(lambda: phases()[-1] == "running", "the start is told")
        await hand.say(lease, "Hello", " there")
        await until(lambda: words(seen) == ["Hello", " there"], "the output comes while it runs")
        await hand.finish(lease)
    assert phases() == ["cold", "starting", "restoring", "warming", "running"]
    assert [event.event for event in seen].count("end") == 1
    end = seen[-1]
    assert (end.event, end.json["status"], end.json["tokens"]) == ("end", "completed", 1)
    assert all((event.id is not None) == (event.event == "message") for event in seen)


@pytest.mark.asyncio
async def test_ten_cuts_lose_nothing_and_double_nothing(world: World, hand: Hand) -> None:
    """Three events a chunk, a cut after every second event: most cuts are in the middle of a chunk."""
    id_ = await submitted(world)
    lease = await hand.take()
    sent = [f"w{n}" for n in range(33)]
    seen: list[Sse] = []
    last: str | None = None
    for cut in range(10):
        await hand.say(lease, *sent[3 * cut : 3 * cut + 3])
        async with events(world, id_, last) as stream:
            for _ in range(2):
                seen.append(await until_event(stream, "message"))  # noqa: PERF401 -- one at a time is the point
        last = seen[-1].id
    await hand.say(lease, *sent[30:])
    await hand.finish(lease)
    seen += await rest(world, id_, last)
    assert words(seen) == sent
    ids = [event.id for event in seen if event.event == "message"]
    assert len(set(ids)) == len(ids)


@pytest.mark.asyncio
async def test_one_that_comes_late_is_given_everything(world: World, hand: Hand) -> None:
    id_ = await submitted(world)
    lease = await hand.take()
    for n in range(5):
        await hand.say(lease, f"a{n}", f"b{n}")
    await hand.finish(lease)
    everything = await rest(world, id_)
    assert words(everything) == [f"{x}{n}" for n in range(5) for x in "ab"]
    assert everything[-1].event == "end"
    after = await rest(world, id_, everything[-2].id)
    assert [event.event for event in after] == ["end"], "nothing but how it ended"
    by_query = await act(world, "GET", f"/v1/jobs/{id_}/events?after=1-4")
    assert by_query.body.count(b'\ndata: {"word"') == 2, "the bare id of a chunk will do"


@pytest.mark.asyncio
async def test_a_new_attempt_is_a_restart(world: World, hand: Hand) -> None:
    id_ = await submitted(world)
    async with events(world, id_) as stream:
        lease = await hand.take()
        await hand.say(lease, "torn")
        torn = await until_event(stream, "message")
        await hand.lose(lease)
        lease = await hand.take()
        restart = await until_event(stream, "restart")
        assert restart.json["attempt"] == lease.attempt
        await hand.say(lease, "whole")
        assert (await until_event(stream, "message")).json == {"word": "whole"}
        await hand.finish(lease)
        await until_event(stream, "end")
    # Whoever was away meanwhile hears of it too, before the new output; whoever had nothing has nothing to throw away.
    assert [event.event for event in await rest(world, id_, torn.id)] == ["restart", "message", "end"]
    assert [event.event for event in await rest(world, id_, restart.id)] == ["message", "end"]
    assert words(await rest(world, id_)) == ["whole"]


@pytest.mark.asyncio
async def test_a_restart_between_two_looks_is_told_before_its_output(
    world: World, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is read, then its output: what was a first attempt may be the second one's by then."""
    id_ = await submitted(world)
    jobs = world.gateways[0].jobs.jobs
    read = jobs.events
    moved: list[int] = []

    async def late(job: str, after: str, **options: Any) -> Any:
        if not moved:
            moved.append(1)
            await hand.lose(lease)
            await hand.say(await hand.take(), "whole")
        return await read(job, after, **options)

    monkeypatch.setattr(jobs, "events", late)  # the moment cannot be hit otherwise
    lease = await hand.take()
    await hand.say(lease, "torn")
    async with asyncio.timeout(10), events(world, id_) as stream:
        names = [(await anext(stream)).event for _ in range(4)]
    assert names == ["status", "message", "restart", "message"]


@pytest.mark.asyncio
async def test_the_id_of_another_job_is_refused(world: World, hand: Hand) -> None:
    ids = [await submitted(world) for _ in range(2)]
    for _ in ids:
        lease = await hand.take()
        await hand.say(lease, "a")
        await hand.finish(lease)
    foreign = (await rest(world, ids[0]))[0].id
    assert foreign is not None
    for last in (foreign, "1-1", "1-2", "9-1", "abc"):
        answer = await act(world, "GET", f"/v1/jobs/{ids[1]}/events", {"Last-Event-ID": last})
        assert (answer.status, answer.code) == (400, "foreign_event_id"), last


@pytest.mark.asyncio
async def test_an_id_that_the_job_has_not_given_is_refused_and_skips_nothing(world: World, hand: Hand) -> None:
    id_ = await submitted(world)
    await hand.lose(await hand.take())
    lease = await hand.take()
    await hand.say(lease, "a")
    await hand.finish(lease)
    own = (await rest(world, id_))[0].id
    assert own is not None and own.startswith("2-1-")
    tag = own.removeprefix("2-1-")
    for invented in ("9-9", "2-2", "2-99"):
        for path, headers in (("", {"Last-Event-ID": f"{invented}-{tag}"}), (f"?after={invented}", {})):
            answer = await act(world, "GET", f"/v1/jobs/{id_}/events{path}", headers)
            assert (answer.status, answer.code) == (400, "foreign_event_id"), invented


@pytest.mark.asyncio
async def test_one_who_has_what_redis_lost_begins_anew(world: World, hand: Hand) -> None:
    """Redis may come back without its last second; the worker goes on from where it is."""
    id_ = await submitted(world)
    lease = await hand.take()
    await hand.say(lease, "a")
    await hand.say(lease, "lost")
    async with events(world, id_) as stream:
        last = [await until_event(stream, "message") for _ in range(2)][-1].id
    assert last is not None and last.startswith("1-2-")
    await world.client.call("XDEL", world.client.keys.out(id_), "1-2")
    async with events(world, id_, last) as stream:
        assert (await until_event(stream, "restart")).json["attempt"] == 1
        assert (await until_event(stream, "message")).json == {"word": "a"}
        await hand.say(lease, "b")
        assert (await until_event(stream, "message")).json == {"word": "b"}
    await hand.finish(lease)
    assert [event.event for event in await rest(world, id_, last)] == ["message", "end"], "what follows is there"


@pytest.mark.asyncio
async def test_output_that_has_lapsed_is_told(world: World, hand: Hand) -> None:
    id_ = await submitted(world)
    lease = await hand.take()
    await hand.say(lease, "a")
    await hand.finish(lease)
    await world.client.call("DEL", world.client.keys.out(id_))  # as after half an hour
    (end,) = await rest(world, id_)
    assert (end.event, end.json["output_gone"]) == ("end", True)
    assert (await world.get(f"/v1/jobs/{id_}/result")).status == 200


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_every_end_ends_the_stream(world: World, hand: Hand, how: str) -> None:
    id_ = await submitted(world)
    async with events(world, id_) as stream:
        await until_event(stream, "status")
        if how == "cancelled":
            await cancel(world, id_)
        else:
            lease = await hand.take()
            outcome: dict[str, Any] = {"error_code": "worker_died", "error_message": "gone"}
            await hand.finish(lease, b"", state=JobState.FAILED, http_status=502, **outcome)
        assert (await until_event(stream, "end")).json["status"] == how
        assert [event async for event in stream] == []


@pytest.mark.asyncio
async def test_a_gateway_that_stops_ends_its_streams_and_another_goes_on(world: World, hand: Hand) -> None:
    id_ = await submitted(world)
    lease = await hand.take()
    await hand.say(lease, "one")
    async with events(world, id_) as stream:
        last = (await until_event(stream, "message")).id
        world.gateways[0].drain.begin()
        assert all([event.event != "end" async for event in stream])
    await world.gateway()
    world.urls.reverse()
    await hand.say(lease, "two")
    await hand.finish(lease)
    assert words(await rest(world, id_, last)) == ["two"]


@pytest.mark.asyncio
async def test_a_reader_outlasts_a_redis_that_dies_and_comes_back(own_redis: LocalRedis) -> None:
    async with World(own_redis.url, "again", config()) as world:
        gateway = await world.gateway()
        await world.known("m", "cold")
        hand = Hand(world)
        id_ = await submitted(world)
        lease = await hand.take()
        async with asyncio.timeout(30), events(world, id_) as stream:
            await hand.say(lease, "before")
            seen = [await until_event(stream, "message")]
            own_redis.kill()
            await until(lambda: not gateway.view.available, "the gateway has noticed")
            own_redis.start()
            await until(lambda: gateway.view.available, "Redis is back")
            await hand.say(lease, "after")
            await hand.finish(lease)
            seen += [event async for event in stream if event.event != "status"]
        assert words(seen) == ["before", "after"]
        assert [event.event for event in seen] == ["message", "message", "end"], "and no restart"


@pytest.mark.asyncio
async def test_events_of_typed_streams_keep_their_names(world: World, hand: Hand) -> None:
    id_ = await submitted(world)
    lease = await hand.take()
    data = b'event: response.output_text.delta\ndata: {"delta":"Hi"}\n\n'
    assert await hand.jobs.chunk(id_, hand.boot, lease.attempt, 1, data, tokens=1)
    await hand.finish(lease)
    first = (await rest(world, id_))[0]
    assert (first.event, first.json) == ("response.output_text.delta", {"delta": "Hi"})
    assert first.id is not None
