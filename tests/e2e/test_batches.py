"""A batch and a followed response while gateways are killed: every line runs once, every event comes once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.conftest import EngineLog
from tests.e2e.jobs import child, no_leaks, restarted, watching
from tests.e2e.stack import Process, Stack, fake, until

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(180)]

LINES = 60
CHAT = "/v1/chat/completions"


async def ask(method: str, url: str, **what: Any) -> tuple[int, bytes]:
    """Repeated while no gateway is there; only what may be repeated is asked so."""
    answer: list[tuple[int, bytes]] = []

    async def answered() -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            async with aiohttp.ClientSession() as http, http.request(method, url, **what) as reply:
                answer[:] = [(reply.status, await reply.read())]
        return bool(answer) and answer[0][0] != 503

    await until(answered, f"{url} answers", 60, every_s=0.05)
    return answer[0]


async def read(url: str) -> dict[str, Any]:
    status, body = await ask("GET", url)
    assert status == 200, body
    told: dict[str, Any] = json.loads(body)
    return told


async def begin(serve: Process) -> str:
    """The id of a batch whose lines the engine's log knows by their custom_id."""
    lines = [
        {
            "custom_id": f"line-{n}",
            "method": "POST",
            "url": CHAT,
            "body": {"model": "m", "user": f"line-{n}", "messages": [{"role": "user", "content": f"n{n}"}]},
        }
        for n in range(LINES)
    ]
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", "\n".join(map(json.dumps, lines)), filename="in.jsonl")
    status, body = await ask("POST", f"{serve.url}/v1/files", data=form)
    assert status == 200, body
    asked = {"input_file_id": json.loads(body)["id"], "endpoint": CHAT, "completion_window": "24h"}
    key = {"Idempotency-Key": "the batch"}
    status, body = await ask("POST", f"{serve.url}/v1/batches", json=asked, headers=key)
    assert status == 200, body
    id_: str = json.loads(body)["id"]
    return id_


@pytest.mark.asyncio
async def test_killed_gateways_cost_a_batch_nothing(tmp_path: Path, engine_log: EngineLog) -> None:
    model = fake("--token-delay", "0.03", "--tokens", "20", "--log", str(engine_log.path), slots=4)
    async with Stack(tmp_path / "s", {"m": model}) as stack:
        serve = await stack.start_serve()
        id_ = await begin(serve)
        for ran in (3, 20, 40):
            await until(lambda ran=ran: engine_log.count("end") >= ran, f"{ran} lines have run", 60)
            victim = child(serve, "gateway")
            victim.kill()
            await restarted(serve, "gateway", victim)
        batch: dict[str, Any] = {}

        async def ended() -> bool:
            batch.update(await read(f"{serve.url}/v1/batches/{id_}"))
            return batch["status"] not in ("validating", "in_progress", "finalizing")

        await until(ended, "the batch has ended", 90, every_s=0.2)
        assert batch["status"] == "completed"
        assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        _, content = await ask("GET", f"{serve.url}/v1/files/{batch['output_file_id']}/content")
        written = [json.loads(line) for line in content.splitlines()]
        assert [each["custom_id"] for each in written] == [f"line-{n}" for n in range(LINES)]
        for n, each in enumerate(written):
            text = each["response"]["body"]["choices"][0]["message"]["content"]
            assert text.startswith(f"You said: n{n} "), text
        assert sorted(engine_log.order()) == sorted(f"line-{n}" for n in range(LINES)), "each ran once"
        async with watching(stack) as watched:
            await no_leaks(watched.client)


@pytest.mark.asyncio
async def test_a_response_is_followed_over_a_killed_gateway_and_a_killed_engine(tmp_path: Path) -> None:
    model = fake("--token-delay", "0.05", "--tokens", "160", slots=2)
    body = {"model": "m", "input": "Hi", "background": True}
    async with Stack(tmp_path / "s", {"m": model}) as stack:
        serve = await stack.start_serve()
        _, made = await ask("POST", f"{serve.url}/v1/responses", json=body, headers={"Idempotency-Key": "one"})
        url = f"{serve.url}/v1/responses/{json.loads(made)['id']}?stream=true"
        events: list[dict[str, Any]] = []

        async def follow() -> None:
            """As a client does: go on after the last number, until the end."""
            while not events or events[-1]["type"] not in ("response.completed", "response.failed"):
                after = f"&starting_after={events[-1]['sequence_number']}" if events else ""
                with contextlib.suppress(aiohttp.ClientError):
                    async with aiohttp.ClientSession() as http, http.get(url + after) as reply:
                        async for line in reply.content:
                            if line.startswith(b"data: "):
                                events.append(json.loads(line[6:]))  # noqa: PERF401  # a cut must not lose what came
                await asyncio.sleep(0.05)

        def deltas(events: list[dict[str, Any]]) -> list[str]:
            return [e["delta"] for e in events if e["type"] == "response.output_text.delta"]

        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            group.create_task(follow())
            await until(lambda: len(deltas(events)) > 5, "some text is there", 60)
            victim = child(serve, "gateway")
            victim.kill()
            await restarted(serve, "gateway", victim)
            before = len(deltas(events))
            await until(lambda: len(deltas(events)) > before, "it goes on", 60)
            for program in stack.engine_programs():
                program.kill()
        assert [e["sequence_number"] for e in events] == list(range(len(events)))
        again = next(n for n, e in enumerate(events) if e.get("rewarm", {}).get("restarted"))
        last = events[-1]["response"]
        text = last["output"][0]["content"][0]["text"]
        assert (last["status"], text.split()[:4]) == ("completed", ["You", "said:", "Hi", "word3"])
        assert "".join(deltas(events[again:])) == text, "the second attempt is whole"
        assert text.startswith("".join(deltas(events[:again]))), "greedy: the first one began the same"
