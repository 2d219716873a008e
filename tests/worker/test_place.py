"""The place server of a pod's worker: ready, hold, drain; and the address that the pod gives as its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from rewarm.knative.names import DRAIN_PATH, HOLD_PATH, READY_PATH
from worker.place import PlaceServer, own_address

pytestmark = pytest.mark.asyncio


class Agent:
    def __init__(self) -> None:
        self.drained = asyncio.Event()
        self.draining = asyncio.Event()
        self.heard = False

    def drain(self) -> None:
        self.draining.set()


@asynccontextmanager
async def place() -> AsyncIterator[tuple[Agent, PlaceServer, aiohttp.ClientSession]]:
    agent = Agent()
    server = PlaceServer(agent)
    async with server.listening(0) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        yield agent, server, http


async def test_it_is_ready_once_the_fleet_has_heard_of_it() -> None:
    async with place() as (agent, _, http):
        async with http.get(READY_PATH) as answer:
            assert answer.status == 503
        agent.heard = True
        async with http.get(READY_PATH) as answer:
            assert answer.status == 200


async def test_a_hold_answers_at_once_and_ends_when_nothing_is_wanted_any_more() -> None:
    async with place() as (_, server, http):
        async with asyncio.timeout(10), http.get(HOLD_PATH) as answer:
            assert (answer.status, await answer.content.readline()) == (200, b"held\n")
            server.release()
            assert await answer.content.read() == b"nothing is wanted here any more\n"


async def test_a_hold_that_comes_after_that_holds_for_what_is_wanted_next() -> None:
    async with place() as (_, server, http):
        server.release()
        async with asyncio.timeout(10), http.get(HOLD_PATH) as answer:
            assert await answer.content.readline() == b"held\n"
            server.release()
            assert await answer.content.readline()


async def test_a_hold_ends_when_the_worker_has_drained() -> None:
    async with place() as (agent, _, http):
        async with asyncio.timeout(10), http.get(HOLD_PATH) as answer:
            assert await answer.content.readline() == b"held\n"
            agent.drained.set()
            assert await answer.content.read() == b"drained\n"


async def test_the_pre_stop_hook_answers_when_nothing_runs_any_more() -> None:
    async with place() as (agent, _, http):

        async def hook() -> int:
            async with http.get(DRAIN_PATH) as answer:
                return answer.status

        hooked = asyncio.create_task(hook())
        async with asyncio.timeout(10):
            await agent.draining.wait()
            assert not hooked.done()
            agent.drained.set()
            assert await hooked == 200


async def test_a_holder_that_goes_away_leaves_nothing_behind() -> None:
    async with place() as (_, server, http):
        async with http.get(HOLD_PATH) as answer:
            await answer.content.readline()
            answer.close()
        async with asyncio.timeout(10):
            while server._held:  # noqa: ASYNC110 -- a connection's end sets no event here
                await asyncio.sleep(0.01)


async def test_the_address_is_the_one_towards_redis() -> None:
    assert own_address("redis://127.0.0.1:6379/0") == "127.0.0.1"
    assert own_address("redis://:secret@[::1]:6379") == "::1"
    assert own_address("unix:///run/redis.sock") == "127.0.0.1"
