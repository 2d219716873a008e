from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
import uvloop

from rewarm.config import Config
from tests.gateway.world import World, config

MakeWorld = Callable[..., Any]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The gateway's own loop."""
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture
async def make_world(redis_url: str) -> AsyncIterator[MakeWorld]:
    """``world = await make_world(config)``: a fleet of its own on the test's Redis, closed at the end."""
    async with AsyncExitStack() as stack:

        async def make(given: Config | None = None) -> World:
            fleet = "t" + uuid.uuid4().hex[:12]
            return await stack.enter_async_context(World(redis_url, fleet, given or config()))

        yield make


@pytest_asyncio.fixture
async def world(make_world: MakeWorld) -> AsyncIterator[World]:
    """One gateway, two models (``m`` with two slots and an alias, ``other``), nothing running."""
    made: World = await make_world()
    await made.gateway()
    await made.known("m", "cold")
    yield made
