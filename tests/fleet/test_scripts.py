"""The Lua itself: every file is used, every key declared, every mutation still applies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from redis import exceptions as redis_errors

import fleet
from fleet import FleetClient
from fleet.scripts import sources
from tests.fleet.lua_sources import MUTATIONS, checked_sources

ROOM = Path(fleet.__file__).parent


def test_every_script_is_run_and_every_script_that_is_run_exists() -> None:
    code = "".join(path.read_text() for path in ROOM.rglob("*.py"))
    run = set(re.findall(r'run(?:_many)?\(\s*"(\w+)"', code))
    run |= set(re.findall(r'_(?:on_ticket|create)\(\s*"(\w+)"', code))
    assert run == set(sources())


def test_no_script_looks_for_keys_by_pattern() -> None:
    for name, text in sources().items():
        assert not re.search(r"'(KEYS|SCAN)'", text), name


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutations_still_apply(mutation: object) -> None:
    checked_sources(mutation.name)  # type: ignore[attr-defined]


@pytest.mark.redis
@pytest.mark.asyncio
async def test_the_tests_refuse_undeclared_keys(fleet_client: FleetClient) -> None:
    text = checked_sources()["cancel"] + "\n"
    broken = text.replace("remove(ARGV[2])", "redis.call('DEL', 'made-up')")
    fleet_client.scripts.use({"cancel": broken.replace("if not same(ARGV[3], ARGV[4], ARGV[5]) then return 0 end", "")})
    keys = fleet_client.scripts.place_keys("t", "m", 1, "g")
    with pytest.raises(redis_errors.ResponseError, match="undeclared key made-up"):
        await fleet_client.scripts.run("cancel", keys, ["t", "m", 1, "g"])
