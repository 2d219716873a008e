"""A gateway without keys and the pages in a browser of its machine, which can reach it as well as any program."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.gateway.jobs_world import Hand, act
from tests.gateway.test_files import upload
from tests.gateway.world import CONFIG, World, chat, config

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]

EVIL = {"Origin": "https://evil.example"}
TEXT = {"Content-Type": "text/plain"}
REBOUND = {"Origin": "http://evil.example:8080", "Host": "evil.example:8080"}
"""A page whose own name leads to 127.0.0.1 by now: to its browser the gateway is where it came from."""


@pytest.mark.parametrize(
    "headers", [{**EVIL, **TEXT}, {"Origin": "null", **TEXT}, REBOUND, {**REBOUND, **TEXT}], ids=str
)
async def test_a_page_of_another_site_starts_nothing(world: World, headers: dict[str, str]) -> None:
    for path in ("/v1/jobs", "/v1/batches", "/v1/chat/completions", "/v1/responses", "/rewarm/v1/commands"):
        answer = await world.post({**chat(), "input": "Hi"}, headers, path)
        assert (answer.status, answer.code) == (403, "origin_refused"), path
        assert "Access-Control-Allow-Origin" not in answer.headers
    assert await Hand(world).waiting() == 0
    assert (await world.registry.snapshot()).demand_ms.get("m", 0) == 0


async def test_nor_does_it_upload_cancel_or_delete_anything(world: World) -> None:
    job = (await world.post(chat(), path="/v1/jobs")).json["id"]
    file = (await upload(world, b"x")).json["id"]
    assert (await upload(world, b"x", EVIL)).code == "origin_refused"
    assert (await act(world, "POST", f"/v1/jobs/{job}/cancel", EVIL)).code == "origin_refused"
    assert (await act(world, "DELETE", f"/v1/files/{file}", REBOUND)).code == "origin_refused"
    assert (await world.get(f"/v1/jobs/{job}")).json["status"] == "queued"
    assert (await world.get(f"/v1/files/{file}")).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        TEXT,  # curl -d
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://127.0.0.1:5173", **TEXT},
        {"Origin": "http://[::1]:9", **TEXT},
        EVIL,  # JSON: no browser sends that unasked, so it is a program's
        {"Host": "gateway.internal"},  # a proxy
    ],
    ids=str,
)
async def test_programs_and_pages_of_this_machine_may_post(world: World, headers: dict[str, str]) -> None:
    assert (await world.post(chat(), headers, "/v1/jobs")).status == 202


async def test_anybody_may_read_what_a_browser_lets_them(world: World) -> None:
    assert (await world.get("/v1/models", EVIL)).status == 200


async def test_a_browser_that_asks_first_is_told_nothing(world: World) -> None:
    asked = {**EVIL, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    answer = await act(world, "OPTIONS", "/v1/jobs", asked)
    assert answer.status >= 400
    assert not any(name.startswith("Access-Control-") for name in answer.headers)


async def test_with_keys_it_is_the_key_that_counts(make_world: Any) -> None:
    key = hashlib.sha256(b"sk").hexdigest()
    world: World = await make_world(config(CONFIG + f"keys: [{{name: a, sha256: {key}}}]\n"))
    await world.gateway()
    await world.known("m", "cold")
    headers = {"Authorization": "Bearer sk", **REBOUND, **TEXT}
    assert (await world.post(chat(), headers, "/v1/jobs")).status == 202
    assert (await world.post(chat(), {**EVIL, **TEXT}, "/v1/jobs")).code == "invalid_api_key"
