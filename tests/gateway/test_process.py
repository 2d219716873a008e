"""The gateway as a process: what it refuses to start with, and how it leaves."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web

import gateway
from fleet import FleetClient
from gateway.run import bind
from rewarm.config import Config, GatewayConfig
from rewarm.errors import ConfigInvalid, PortInUse, UnsafeListen
from rewarm.paths import Paths
from tests.gateway.world import CONFIG, HELLO, World, chat, config, hello, sse, until

pytestmark = pytest.mark.redis


def listening(port: int, text: str = CONFIG) -> Config:
    return config(text.replace("127.0.0.1:0", f"127.0.0.1:{port}"))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class TestStart:
    def test_a_port_in_use(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(PortInUse, match=f"127.0.0.1:{port} is in use"):
                bind(listening(port))

    def test_without_keys_only_on_loopback(self) -> None:
        with pytest.raises(ConfigInvalid, match=r"gateway\.listen"):
            config(CONFIG.replace("127.0.0.1:0", "0.0.0.0:0"))
        with pytest.raises(UnsafeListen):  # of a configuration that nobody has checked
            bind(config(CONFIG).model_copy(update={"gateway": GatewayConfig(listen="0.0.0.0:0")}))
        keyed = CONFIG.replace("127.0.0.1:0", "0.0.0.0:0") + f"keys: [{{name: a, sha256: '{'0' * 64}'}}]\n"
        bind(config(keyed)).close()

    def test_an_address_that_is_not_ours(self) -> None:
        keyed = CONFIG.replace("127.0.0.1:0", "192.0.2.1:80") + f"keys: [{{name: a, sha256: '{'0' * 64}'}}]\n"
        with pytest.raises(PortInUse, match=r"192\.0\.2\.1:80"):
            bind(config(keyed))

    @pytest.mark.asyncio
    async def test_it_runs_on_uvloop(self, redis_url: str, tmp_path: Path) -> None:
        def plain() -> None:
            client: Any = None
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                runner.run(gateway.run(listening(0), Paths.at(tmp_path), client))

        with pytest.raises(RuntimeError, match="uvloop"):
            await asyncio.to_thread(plain)


class Running:
    """``gateway.run`` in this loop, stopped by an event as by a signal."""

    def __init__(self, world: World, tmp_path: Path, **fields: Any) -> None:
        self.world = world
        self.port = free_port()
        self.paths = Paths.at(tmp_path / "state")
        self.paths.make()
        self.stop = asyncio.Event()
        self.config = world.config.model_copy(
            update={"gateway": world.config.gateway.model_copy(update={"listen": f"127.0.0.1:{self.port}", **fields})}
        )

    async def __aenter__(self) -> Running:
        self.client = await FleetClient.connect(self.world.url, self.world.fleet, check=False)
        self.task = asyncio.ensure_future(gateway.run(self.config, self.paths, self.client, stop=self.stop))
        self.world.urls.insert(0, f"http://127.0.0.1:{self.port}")
        await until(self._ready, "it is ready")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.stop.set()
        async with asyncio.timeout(20):
            await self.task
        await self.client.close()

    async def _ready(self) -> bool:
        assert not self.task.done(), self.task.exception()
        try:
            return (await self.world.get("/ready")).status == 200
        except aiohttp.ClientError:
            return False


class TestDrain:
    @pytest.mark.asyncio
    async def test_streams_end_held_requests_are_told_and_nothing_new_comes_in(
        self, make_world: Any, tmp_path: Path
    ) -> None:
        world: World = await make_world()
        gate = await world.ready("m")
        hold = asyncio.Event()

        async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            await hold.wait()
            return await hello(request, body)

        gate.answer = slow
        async with asyncio.TaskGroup() as group:
            async with Running(world, tmp_path) as running:
                await until(lambda: self._sees(world, "m"), "the model is seen")
                stream = group.create_task(world.post(chat(stream=True)))
                await until(lambda: gate.running == 1, "a stream runs")
                plain = group.create_task(world.post(chat("other")))
                held = group.create_task(world.post(chat("other", stream=True)))
                await until(lambda: self._waiting(world, 2), "two are held")
                running.stop.set()
                assert (await plain).code == "shutting_down"
                assert (await plain).headers["Retry-After"] == "2"
                assert (await held).code == "shutting_down"
                await until(self._refuses(running.port), "new connections are refused")
                assert not running.task.done()
                hold.set()
                answer = await stream
                assert answer.body.endswith(b"data: [DONE]\n\n") and b"error" not in answer.body
                async with asyncio.timeout(10):
                    await running.task
        assert await world.client.redis.zcard(world.client.keys.gateways) == 0

    @pytest.mark.asyncio
    async def test_after_the_deadline_a_stream_is_cut_off_with_an_error_event(
        self, make_world: Any, tmp_path: Path
    ) -> None:
        from datetime import timedelta

        world: World = await make_world()
        gate = await world.ready("m")

        async def endless(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(sse(*HELLO[:2]))
            await asyncio.Event().wait()
            raise AssertionError

        gate.answer = endless
        async with Running(world, tmp_path, shutdown_deadline=timedelta(seconds=0.3)) as running:
            await until(lambda: self._sees(world, "m"), "the model is seen")
            async with asyncio.TaskGroup() as group:
                stream = group.create_task(world.post(chat(stream=True)))
                await until(lambda: gate.running == 1, "a stream runs")
                running.stop.set()
            events = [line for line in (await stream).body.decode().split("\n\n") if line]
            assert json.loads(events[-2][6:])["error"]["code"] == "shutting_down"
            assert events[-1] == "data: [DONE]"
        await until(lambda: gate.running == 0, "the engine saw it end")

    @staticmethod
    async def _sees(world: World, model: str) -> bool:
        return bool((await world.get(f"/v1/models/{model}")).json["rewarm"]["state"] == "ready")

    @staticmethod
    async def _waiting(world: World, count: int) -> bool:
        return (await world.queue.waiting(["other"]))["other"].count == count

    @staticmethod
    def _refuses(port: int) -> Any:
        def refused() -> bool:
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", port)) != 0

        return refused


@pytest.mark.asyncio
async def test_a_client_library_sees_nothing_special(world: World) -> None:
    """openai-python against a cold model, plain and streaming, with no settings for us."""
    async with openai.AsyncOpenAI(base_url=world.base + "/v1", api_key="x", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "Hi"}]

        async def streaming() -> tuple[str, list[str]]:
            text = ""
            roles: list[str] = []
            async for part in await client.chat.completions.create(model="m", messages=messages, stream=True):
                text += part.choices[0].delta.content or ""
                roles += [part.choices[0].delta.role] if part.choices[0].delta.role else []
            return text, roles

        async with asyncio.TaskGroup() as group:
            plain = group.create_task(client.chat.completions.create(model="m", messages=messages))
            streamed = group.create_task(streaming())
            await until(
                lambda: sum(bool(c.status) for c in world.gateways[0].calls) == 2, "both have been told to wait"
            )
            await world.ready("m")
        assert plain.result().choices[0].message.content == "Hello there"
        assert streamed.result() == ("Hello there", ["assistant"])
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="nobody", messages=messages)
        assert caught.value.code == "model_not_found"
        assert "m" in [model.id async for model in client.models.list()]
