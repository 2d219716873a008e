"""What applies at once when the file changes, and what waits for a restart."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from rewarm.config import Config, ConfigFile, catalogue, changes, load, parse
from rewarm.errors import ConfigInvalid

KEY = "keys: [{name: team, sha256: '" + "0" * 64 + "'}]\n"
MODEL = "models: {m: {engine: command, cmd: 'serve ${PORT}', idle_after: 60s}}\n"


def test_models_keys_and_what_a_gateway_holds_apply_at_once() -> None:
    old = parse(MODEL)
    new = parse(MODEL.replace("60s", "5s") + KEY + "gateway: {max_body: 1MiB, holding: {patience: 3s}}\n")
    found = changes(old, new)
    assert found.applied == ("gateway.max_body", "gateway.holding.patience", "models.m", "keys")
    assert found.restart == ()
    assert found.config == new


def test_what_is_taken_at_the_start_waits_and_is_named() -> None:
    old = parse(MODEL)
    new = parse("redis: {url: redis://elsewhere}\nworker: {name: w, memory: 8GiB}\ngateway: {listen: '127.0.0.1:1'}\n")
    found = changes(old, new)
    assert found.restart == ("redis.url", "gateway.listen", "worker.name", "worker.memory")
    assert found.applied == ("models.m",)
    assert found.config.gateway == old.gateway
    assert found.config.models == {}
    assert str(found) == "models.m; only after a restart: redis.url, gateway.listen, worker.name, worker.memory"


def test_the_last_key_cannot_go_while_the_gateway_listens_to_everybody() -> None:
    """The new file is sound by itself, because it listens on loopback; the gateway does not, until it is restarted."""
    old = parse("gateway: {listen: '0.0.0.0:8080'}\n" + KEY)
    with pytest.raises(ConfigInvalid, match="needs a key there"):
        changes(old, parse("gateway: {listen: '127.0.0.1:8080'}\n"))


def test_a_policy_changes_no_specification() -> None:
    """A changed policy must not replace a replica; a changed specification must."""
    before, policy = parse(MODEL), parse(MODEL.replace("60s", "5s"))
    command = parse(MODEL.replace("serve", "serve --fast"))
    hashes = [catalogue(c)["m"].spec_hash for c in (before, policy, command)]
    assert hashes[0] == hashes[1] != hashes[2]


class Looks:
    """A clock whose sleep ends when the test says so: one look of the watcher at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(0)
        self._asleep = asyncio.Event()

    def now(self) -> float:
        return 1000.0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self._asleep.set()
        await self._turn.acquire()

    async def next(self) -> None:
        await self._asleep.wait()
        self._asleep.clear()
        self._turn.release()
        await self._asleep.wait()


@pytest.mark.asyncio
async def test_a_file_that_changes_is_read_once_it_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(MODEL)
    looks = Looks()
    file = ConfigFile(path, load(path), clock=looks)
    heard: list[Config] = []
    file.subscribe(heard.append)
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(file.watch())
        await looks.next()
        path.write_text("models: {m: {engine: comm")  # an editor in the middle of it
        await looks.next()
        path.write_text(MODEL + KEY)
        await looks.next()
        assert (heard, file.state.problem) == ([], "")
        await looks.next()
        assert [len(config.keys) for config in heard] == [1]
        await looks.next()
        assert (file.state.reloads, file.state.refused) == (1, 0)

        path.write_text("models: {m: {engine: command}}\n")
        await looks.next()
        await looks.next()
        await looks.next()
        assert file.state.refused == 1  # said once, not at every look
        assert file.state.problem == f"{path}:1: models.m.cmd: is required"
        assert [len(config.keys) for config in heard] == [1]

        os.unlink(path)  # noqa: PTH108 -- as an operator does it
        await looks.next()
        await looks.next()
        assert "No such file" in file.state.problem
        watching.cancel()
    assert file.current.keys


def test_a_file_that_is_mended_is_no_problem_any_more(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(MODEL)
    file = ConfigFile(path, load(path))
    path.write_text("models: [")
    assert not file.reread()
    path.write_text(MODEL + "worker: {memory: 8GiB}\n")
    assert file.reread()
    assert (file.state.problem, file.state.restart) == ("", ("worker.memory",))
    assert file.current.worker.memory is None
