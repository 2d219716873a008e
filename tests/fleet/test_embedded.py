"""The private Redis of `rewarm serve`: nobody else's, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fleet import EmbeddedRedis, FleetClient, Queue
from rewarm.errors import RedisBinaryMissing, RedisUnreachable, StateInUse
from rewarm.paths import Paths
from tests.fleet.helpers import enqueue

pytestmark = pytest.mark.redis


@pytest.fixture
def paths() -> Iterator[Paths]:
    with tempfile.TemporaryDirectory(prefix="rw") as folder:
        yield Paths.at(Path(folder))


@pytest.mark.asyncio
async def test_it_keeps_its_data_over_a_restart_and_is_suitable(paths: Paths) -> None:
    server = EmbeddedRedis(paths)
    url = await server.start()
    client = await FleetClient.connect(url, "f")
    assert client.warnings == []
    await enqueue(Queue(client), "t")
    await server.stop()
    assert server.pid is None
    await server.start()
    assert await Queue(client).positions("m", ["t"]) == {"t": 0}
    await client.close()
    await server.stop()


@pytest.mark.asyncio
async def test_it_can_only_be_reached_through_a_private_socket(paths: Paths) -> None:
    server = EmbeddedRedis(paths)
    await server.start()
    assert server.pid is not None
    assert psutil.Process(server.pid).net_connections("inet") == []
    assert stat.S_IMODE(paths.redis_socket.stat().st_mode) == 0o700
    assert stat.S_IMODE(paths.run.stat().st_mode) == 0o700
    await server.stop()


@pytest.mark.asyncio
async def test_a_second_one_on_the_same_folder_is_refused(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.embedded._LOCK_WAIT_S", 0.2)
    first, second = EmbeddedRedis(paths), EmbeddedRedis(paths)
    await first.start()
    with pytest.raises(StateInUse, match=str(paths.redis)):
        await second.start()
    await first.stop()
    await second.start()
    await second.stop()


@pytest.mark.asyncio
async def test_whoever_supervises_it_sees_it_end(paths: Paths) -> None:
    server = EmbeddedRedis(paths)
    await server.start()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert await asyncio.wait_for(server.wait(), 5) == -signal.SIGKILL
    await server.start()  # over the socket and the lock of the dead one
    await server.stop()


@pytest.mark.asyncio
async def test_a_damaged_file_is_said_with_the_end_of_the_log(paths: Paths) -> None:
    server = EmbeddedRedis(paths)
    await server.start()
    await server.stop()
    for path in [*paths.redis.rglob("*.aof"), *paths.redis.glob("*.manifest"), *paths.redis.rglob("*.rdb")]:
        path.write_bytes(b"this is no append-only file\n" * 10)
    with pytest.raises(RedisUnreachable, match="its log ends with"):
        await server.start()
    assert server.pid is None


@pytest.mark.asyncio
async def test_without_a_binary_the_message_says_what_to_install(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(RedisBinaryMissing):
        await EmbeddedRedis(paths).start()


def test_it_dies_with_the_process_that_started_it(paths: Paths) -> None:
    program = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from fleet import EmbeddedRedis\nfrom rewarm.paths import Paths\n"
        "async def main():\n"
        "    server = EmbeddedRedis(Paths.at(Path(sys.argv[1])))\n"
        "    await server.start()\n"
        "    print(server.pid, flush=True)\n"
        "    await server.wait()\n"
        "asyncio.run(main())\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program, str(paths.state)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    try:
        server = psutil.Process(int(owner.stdout.readline()))
    finally:
        owner.kill()
        owner.stdout.close()
        owner.wait()
    deadline = time.monotonic() + 10
    while server.is_running() and server.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the private Redis was left behind"
        time.sleep(0.02)
