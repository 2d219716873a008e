"""``rewarm jobs ls | show | watch | cancel | result`` against a real fleet."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import again, chats, finished, fleet, on_a_terminal, rewarm, start, write
from tests.e2e.conftest import EngineLog
from tests.e2e.stack import Process, post, until

pytestmark = [pytest.mark.redis, pytest.mark.asyncio, pytest.mark.timeout(120)]


async def handed_in(gateway: Process, text: str = "hello", **fields: Any) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
    status, job, _ = await post(gateway.url, body, path="/v1/jobs")
    assert status == 202, job
    return str(job["id"])


async def shown(gateway: Process, job: str) -> dict[str, Any]:
    found: dict[str, Any] = (await rewarm("jobs", "show", job, "--json", "--url", gateway.url)).json()
    return found


async def test_looking_at_jobs_that_wait(tmp_path: Path) -> None:
    async with fleet(tmp_path / "s", worker=False) as (_, gateway):
        url = ("--url", gateway.url)
        assert (await rewarm("jobs", "ls", *url)).out == "no jobs\n"
        ids = [await handed_in(gateway, f"hello {n}", priority="low", metadata={"n": str(n)}) for n in range(3)]
        text = (await rewarm("jobs", "ls", *url)).out
        assert [line.split()[:4] for line in text.splitlines()[1:]] == [
            [id_, "queued", "m", "low"] for id_ in reversed(ids)
        ]
        assert "position 2" in text
        newest = (await rewarm("jobs", "ls", "--limit", "2", "--json", *url)).json()
        assert [job["id"] for job in newest["jobs"]] == [ids[2], ids[1]]
        assert newest["has_more"]
        assert (await rewarm("jobs", "ls", "--status", "completed", "--status", "failed", *url)).out == "no jobs\n"
        one = (await rewarm("jobs", "show", ids[1], *url)).out
        for part in ("queued", "position 1", "n=1", "/v1/chat/completions", "low"):
            assert part in one

        cancelled = await rewarm("jobs", "cancel", ids[0], ids[1], *url)
        assert cancelled.out == f"{ids[0]} is cancelled\n{ids[1]} is cancelled\n"
        assert (await rewarm("jobs", "cancel", ids[0], *url)).code == 0, "twice is no error"
        assert (await shown(gateway, ids[2]))["queue_position"] == 0
        ended = await rewarm("jobs", "watch", ids[0], *url)
        assert (ended.code, "is cancelled" in ended.err) == (11, True)
        for command in ("show", "watch", "cancel", "result"):
            unknown = await rewarm("jobs", command, "job_nobody", *url)
            assert (unknown.code, "job_not_found" in unknown.err) == (6, True), command
        unfinished = await rewarm("jobs", "result", ids[2], *url)
        assert (unfinished.code, "job_not_finished" in unfinished.err) == (6, True)
        gone = await rewarm("jobs", "result", ids[0], "--json", *url)
        assert (gone.code, gone.json()["error"]["code"]) == (11, "job_not_completed")


async def test_a_page_holds_a_hundred_and_ls_turns_it(tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl", chats(130))
    async with fleet(tmp_path / "s", worker=False) as (_, gateway):
        assert (await rewarm("submit", str(file), "--no-wait", "--url", gateway.url)).code == 0
        found = (await rewarm("jobs", "ls", "--limit", "120", "--json", "--url", gateway.url)).json()
        assert len({job["id"] for job in found["jobs"]}) == 120
        assert found["has_more"]


async def test_watching_a_job_through_a_cold_load_to_its_end(tmp_path: Path) -> None:
    async with fleet(tmp_path / "s", "--start-delay", "2") as (_, gateway):
        job = await handed_in(gateway, "one two three", stream=True, fake={"token_delay": 0.3})
        watching = await start("jobs", "watch", job, "--json", "--url", gateway.url)
        code, terminal = await on_a_terminal("jobs", "watch", job, "--url", gateway.url)
        done = await finished(watching)
        plain = await rewarm("jobs", "watch", job, "--text", "--url", gateway.url)
        result = await rewarm("jobs", "result", job, "--text", "--url", gateway.url)
        whole = await rewarm("jobs", "result", job, "--out", str(tmp_path / "r.json"), "--url", gateway.url)
    assert (done.code, code, plain.code, result.code, whole.code) == (0, 0, 0, 0, 0), (done.err, terminal)
    told = [json.loads(line) for line in done.out.splitlines()]
    statuses = [event["data"] for event in told if event["event"] == "status"]
    assert {status["status"] for status in statuses} >= {"loading", "in_progress"}
    fractions = [status["progress"]["fraction"] for status in statuses]
    assert fractions == sorted(fractions)
    assert told[-1]["event"] == "end"
    text = "".join(
        e["data"]["choices"][0]["delta"].get("content", "") for e in told if e.get("id") and "choices" in e["data"]
    )
    assert text == "You said: one two three"
    assert re.search(r"loading, [a-z]+ \d+%", terminal), terminal[-3000:]
    assert re.search(r"in progress, \d+ tokens", terminal), terminal[-3000:]
    assert plain.out == result.out == "You said: one two three\n"
    assert json.loads((tmp_path / "r.json").read_text())["choices"][0]["message"]["content"] == text


async def test_without_a_terminal_each_stage_is_a_line(tmp_path: Path) -> None:
    async with fleet(tmp_path / "s", "--start-delay", "5") as (_, gateway):  # longer than the command needs to begin
        job = await handed_in(gateway, fake={"token_delay": 0.3})
        done = await rewarm("jobs", "watch", job, "--url", gateway.url)
    lines = done.err.splitlines()
    assert all(line.startswith(job) for line in lines)
    assert any("loading" in line for line in lines)
    assert any("in progress" in line for line in lines)
    assert "is completed" in lines[-1]


async def test_a_watch_outlives_its_gateway_and_doubles_nothing(tmp_path: Path) -> None:
    words = " ".join(f"word{n}" for n in range(40))
    async with fleet(tmp_path / "s") as (stack, gateway):
        job = await handed_in(gateway, words, stream=True, fake={"token_delay": 0.1})
        watching = await start("jobs", "watch", job, "--text", "--url", gateway.url)

        async def under_way() -> bool:
            return bool((await shown(gateway, job))["tokens"] > 8)

        await until(under_way, "tokens come")
        await gateway.kill()
        await again(stack, gateway)
        done = await finished(watching)
    assert done.code == 0, done.err
    assert done.out == f"You said: {words}\n"


async def test_cancelling_a_job_that_runs(tmp_path: Path, engine_log: EngineLog) -> None:
    async with fleet(tmp_path / "s", "--log", str(engine_log.path)) as (_, gateway):
        job = await handed_in(gateway, "x", user="t", fake={"tokens": 2000, "token_delay": 0.1})
        watching = await start("jobs", "watch", job, "--json", "--url", gateway.url)
        await until(lambda: engine_log.count("start") == 1, "it runs")
        done = await rewarm("jobs", "cancel", job, "--url", gateway.url)
        assert done.code == 0, done.err
        assert "is being stopped" in done.out or "is cancelled" in done.out
        await until(lambda: engine_log.count("abort") == 1, "the engine stops generating", 10)
        ended = await finished(watching)
    assert ended.code == 11
    assert [json.loads(line) for line in ended.out.splitlines()][-2]["data"]["status"] == "cancelled"


async def test_a_failed_job_says_why(tmp_path: Path) -> None:
    async with fleet(tmp_path / "s") as (_, gateway):
        job = await handed_in(gateway, fake={"fail_status": 400})
        watched = await rewarm("jobs", "watch", job, "--url", gateway.url)
        result = await rewarm("jobs", "result", job, "--url", gateway.url)
        listed = await rewarm("jobs", "ls", "--url", gateway.url)
    assert (watched.code, result.code) == (11, 11)
    for text in (watched.err, result.err, listed.out):
        assert "told to fail" in text


async def test_ctrl_c_ends_the_watch_and_not_the_job(tmp_path: Path) -> None:
    async with fleet(tmp_path / "s") as (_, gateway):
        words = " ".join(f"word{n}" for n in range(20))  # for longer than a look at it takes
        job = await handed_in(gateway, words, stream=True, fake={"token_delay": 0.3})
        watching = await start("jobs", "watch", job, "--url", gateway.url)

        async def runs() -> bool:
            return bool((await shown(gateway, job))["status"] == "in_progress")

        await until(runs, "it runs")
        watching.send_signal(signal.SIGINT)
        done = await finished(watching)
        assert done.code == 130
        assert "Traceback" not in done.err
        assert (await rewarm("jobs", "watch", job, "--url", gateway.url)).code == 0
