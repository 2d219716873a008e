"""Webhooks on a whole fleet: two gateways, a worker, a receiver that is away while everything happens."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import standardwebhooks
from aiohttp import web

from fleet import FleetClient
from fleet.leaks import find_leaks
from tests.e2e.stack import Stack, chat, fake, free_port, post, until

pytestmark = [pytest.mark.redis, pytest.mark.asyncio, pytest.mark.timeout(120)]

KEY = "whsec_" + base64.b64encode(bytes(range(32))).decode()
LOCAL = {"webhooks": {"allow": ["127.0.0.1"]}}


async def test_a_receiver_that_comes_back_is_told_although_a_gateway_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REWARM_WEBHOOK_SECRET", KEY)
    port = free_port()
    got: list[dict[str, Any]] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        got.append(standardwebhooks.Webhook(KEY).verify(body, headers))
        return web.Response()

    async with Stack(tmp_path / "s", {"m": fake(slots=4)}, jobs=LOCAL) as stack:
        await stack.start_redis()
        gateways = [await stack.start_gateway(f"gateway-{n}") for n in (1, 2)]
        await stack.start_worker()
        hook = {"url": f"http://127.0.0.1:{port}/", "events": ["in_progress", "completed"]}
        ids = []
        for n in range(10):
            status, job, _ = await post(gateways[n % 2].url, chat("m", f"q {n}", webhook=hook), path="/v1/jobs")
            assert status == 202, job
            ids.append(job["id"])

        async def completed() -> bool:
            found = [(await get(gateways[1].url, id_)) for id_ in ids]
            return all(job["status"] == "completed" for job in found)

        await until(completed, "the jobs are completed, told or not")
        shown = (await get(gateways[1].url, ids[0]))["webhook"]
        assert (shown["delivered"], shown["given_up"]) == (False, False)
        (replica,) = await stack.replicas(gateways[1], "m")
        assert (replica["in_flight"], replica["reserved"]) == (0, 0), "no slot waits for the receiver"

        await gateways[0].kill()
        runner = web.ServerRunner(web.Server(handle))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:

            async def told() -> bool:
                found = [(await get(gateways[1].url, id_))["webhook"] for id_ in ids]
                return all(hook["delivered"] for hook in found)

            await until(told, "the other gateway tells it all", 60, every_s=0.2)
        finally:
            await runner.cleanup()
        for id_ in ids:
            events = [message["type"] for message in got if message["data"]["id"] == id_]
            assert list(dict.fromkeys(events)) == ["job.in_progress", "job.completed"], "in order"
        assert stack.redis_url is not None
        client = await FleetClient.connect(stack.redis_url, stack.fleet, check=False)
        try:
            assert await client.call("EXISTS", client.keys.hooks) == 0
            assert [leak for leak in await find_leaks(client) if "hook" in leak] == []
        finally:
            await client.close()


async def test_what_a_gateway_refuses_leaves_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARM_WEBHOOK_SECRET", KEY)
    async with Stack(tmp_path / "s", {"m": fake()}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        for url in ("http://127.0.0.1:9/", "http://localhost/", "http://[::ffff:10.0.0.1]/", "ftp://example.com/"):
            status, body, _ = await post(gateway.url, chat("m", webhook=url), path="/v1/jobs")
            assert (status, body["error"]["code"]) == (400, "webhook_refused"), url
        assert (await get(gateway.url, ""))["data"] == []
    monkeypatch.delenv("REWARM_WEBHOOK_SECRET")
    async with Stack(tmp_path / "s2", {"m": fake()}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        status, body, _ = await post(gateway.url, chat("m", webhook="https://example.com/"), path="/v1/jobs")
        assert (status, body["error"]["code"]) == (400, "webhook_refused")
        assert "REWARM_WEBHOOK_SECRET" in body["error"]["message"]


async def test_a_secret_that_is_none_keeps_the_gateway_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REWARM_WEBHOOK_SECRET", "hunter2")
    async with Stack(tmp_path / "s", {"m": fake()}) as stack:
        await stack.start_redis()
        config = stack.config("gateway-1", gateway={"listen": f"127.0.0.1:{free_port()}"})
        process = await stack.spawn("gateway-1", sys.executable, "-m", "rewarm", "gateway", str(config))
        assert await process.popen.wait() == 2
        assert "config_invalid" in process.text()
        assert "hunter2" not in process.text()


async def get(url: str, job: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/v1/jobs{'/' if job else ''}{job}") as answer:
        found: dict[str, Any] = json.loads(await answer.read())
        return found
