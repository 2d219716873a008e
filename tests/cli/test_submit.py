"""``rewarm submit`` against a real fleet: results in order, bad lines reported, no job twice whatever breaks."""

from __future__ import annotations

import hashlib
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from aiohttp.typedefs import Handler

from rewarm.errors import catalogue
from tests.cli.commands import again, chats, finished, fleet, lines_of, on_a_terminal, rewarm, said, start, write
from tests.e2e.conftest import EngineLog
from tests.e2e.stack import Process, Stack, until

SLOW = {"token_delay": 0.3}

pytestmark = [pytest.mark.redis, pytest.mark.asyncio, pytest.mark.timeout(120)]


async def jobs_of(gateway: Process, *more: str) -> list[dict[str, Any]]:
    listed = (await rewarm("jobs", "ls", "--limit", "1000", "--json", "--url", gateway.url, *more)).json()
    found: list[dict[str, Any]] = listed["jobs"]
    return found


def gateway_app(handler: Handler) -> web.Application:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    return app


def submitted(out: Path) -> int:
    """How many lines have a job so far, as the run itself writes down."""
    return max(0, len(lines_of_whole(out.with_name(out.name + ".state"))) - 1)


def lines_of_whole(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []


# --- the usual -------------------------------------------------------------------------------------------------------


async def test_a_file_of_requests_becomes_a_file_of_results_in_its_order(tmp_path: Path) -> None:
    bodies = chats(12)
    batch = [
        {"custom_id": f"id-{n}", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": f"p {n}"}}
        for n in range(3)
    ]
    # The first takes longest: the order of the results is not that of their ends.
    bodies[0]["fake"] = {"first_token_delay": 1.0}
    file = write(tmp_path / "night.jsonl", [*bodies[:6], "", *batch, *bodies[6:]])
    async with fleet(tmp_path / "s") as (_, gateway):
        done = await rewarm("submit", str(file), "--url", gateway.url)
    assert done.code == 0, done.err
    out = tmp_path / "night.results.jsonl"
    assert done.out == f"15 completed: {out}\n"
    rows = lines_of(out)
    assert [row["line"] for row in rows] == [*range(1, 7), *range(8, 17)]
    assert [said(row) for row in rows if not row["custom_id"]] == [f"You said: question {n}" for n in range(12)]
    assert [row["response"]["body"]["choices"][0]["text"] for row in rows if row["custom_id"]] == [
        f"You said: p {n}" for n in range(3)
    ]
    assert {row["status"] for row in rows} == {"completed"}
    assert rows[0]["response"]["status_code"] == 200
    assert rows[0]["error"] is None
    assert not out.with_name(out.name + ".state").exists()
    assert not out.with_name(out.name + ".part").exists()


async def test_the_same_command_again_makes_no_second_job(tmp_path: Path) -> None:
    file, out = write(tmp_path / "in.jsonl", chats(5)), tmp_path / "out.jsonl"
    async with fleet(tmp_path / "s") as (_, gateway):
        command = ("submit", str(file), "--out", str(out), "--url", gateway.url)
        assert (await rewarm(*command)).code == 0
        first = out.read_text()
        assert (await rewarm(*command, "--no-state")).code == 0
        assert out.read_text() == first
        assert len(await jobs_of(gateway)) == 5
        named = await rewarm(*command, "--run", "second", "--json")
        assert named.json()["ended"] == {"completed": 5}
        assert len(await jobs_of(gateway)) == 10, "another name, another run"
        other = await rewarm(*command, "--priority", "low")
        assert (other.code, "--run" in other.err) == (6, True), "same keys, other jobs: a mistake that is told"


async def test_handing_in_and_collecting_can_be_two_steps(tmp_path: Path) -> None:
    file, out = write(tmp_path / "in.jsonl", chats(5, fake=SLOW)), tmp_path / "out.jsonl"
    async with fleet(tmp_path / "s") as (_, gateway):
        command = ("submit", str(file), "--out", str(out), "--url", gateway.url)
        first = await rewarm(*command, "--no-wait", "--json")
        assert (first.code, first.json()["submitted"]) == (0, 5)
        assert not out.exists()
        second = await rewarm(*command, "--json")
        assert second.json()["submitted_before"] == 5
        assert [said(row) for row in lines_of(out)] == [f"You said: question {n}" for n in range(5)]
        assert len(await jobs_of(gateway)) == 5


async def test_the_key_comes_from_an_environment_variable(tmp_path: Path) -> None:
    keys = [{"name": "a", "sha256": hashlib.sha256(b"secret-a").hexdigest()}]
    file = write(tmp_path / "in.jsonl", chats(2))
    async with fleet(tmp_path / "s", keys=keys) as (_, gateway):
        command = ("submit", str(file), "--url", gateway.url)
        without = await rewarm(*command)
        assert (without.code, "invalid_api_key" in without.err) == (6, True)
        wrong = await rewarm(*command, "--key-env", "MY_KEY", env={"MY_KEY": "other"})
        assert wrong.code == 6
        unset = await rewarm(*command, "--key-env", "MY_KEY")
        assert (unset.code, "MY_KEY" in unset.err) == (2, True)
        right = await rewarm(*command, "--key-env", "MY_KEY", env={"MY_KEY": "secret-a"})
        assert right.code == 0, right.err


async def test_on_a_terminal_it_shows_how_far_it_is(tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl", chats(6))
    async with fleet(tmp_path / "s", "--start-delay", "2", "--token-delay", "0.05") as (_, gateway):
        code, shown = await on_a_terminal("submit", str(file), "--url", gateway.url)
    assert code == 0, shown
    assert "submitted" in shown
    assert "6/6" in shown
    assert re.search(r"loading, (position \d, )?[a-z]+ \d+%", shown), shown[-3000:]


# --- lines that are none ---------------------------------------------------------------------------------------------

BAD = ["{", {"model": "nobody", "messages": []}, {"custom_id": "x", "url": "/v1/chat/completions"}]


async def test_with_a_bad_line_nothing_is_submitted(tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl", [*chats(2), *BAD, *chats(1)])
    async with fleet(tmp_path / "s", worker=False) as (_, gateway):
        done = await rewarm("submit", str(file), "--url", gateway.url)
        as_json = await rewarm("submit", str(file), "--url", gateway.url, "--json")
        assert await jobs_of(gateway) == []
    assert done.code == as_json.code == 2
    for text in ("line 3: not JSON", "line 4: no model is named 'nobody'", "line 5: `body` is missing"):
        assert text in done.err
    error = as_json.json()["error"]
    assert (error["code"], [bad["line"] for bad in error["lines"]]) == ("input_invalid", [3, 4, 5])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "s"], "nothing is left lying about"


async def test_or_all_others_are(tmp_path: Path) -> None:
    file, out = write(tmp_path / "in.jsonl", [*chats(2), *BAD, *chats(1)]), tmp_path / "out.jsonl"
    async with fleet(tmp_path / "s") as (_, gateway):
        command = ("submit", str(file), "--out", str(out), "--url", gateway.url, "--on-bad-line", "skip")
        done = await rewarm(*command)
        assert len(await jobs_of(gateway)) == 3
    assert done.code == 0, done.err
    assert done.out == f"3 completed, 3 refused: {out}\n"
    assert "line 4: no model is named 'nobody'" in done.err
    rows = lines_of(out)
    assert [row["status"] for row in rows] == ["completed"] * 2 + ["refused"] * 3 + ["completed"]
    assert rows[2]["error"]["message"].startswith("not JSON")


async def test_what_only_the_gateway_can_refuse_is_reported_by_line_too(tmp_path: Path) -> None:
    strange = {"custom_id": "s", "url": "/v1/nonsense", "body": chats(1)[0]}
    large = chats(1, padding="x" * 5000)
    file, out = write(tmp_path / "in.jsonl", [*chats(1), strange, *large, *chats(1)]), tmp_path / "out.jsonl"
    failing = write(tmp_path / "failing.jsonl", ["{", *chats(1, fake={"fail_status": 400}), strange, *chats(1)])
    async with fleet(tmp_path / "s", jobs={"max_body": 4096}) as (_, gateway):
        command = ("submit", str(file), "--out", str(out), "--url", gateway.url)
        done = await rewarm(*command, "--on-bad-line", "skip", "--json")
        assert done.code == 11
        error = done.json()["error"]
        assert error["code"] == "line_refused", "no job is to be looked at"
        assert "jobs show" not in error["advice"]
        assert error["message"].startswith(f"2 completed, 2 refused: {out}\n2 lines are no request:")
        assert error["ended"] == {"completed": 2, "refused": 2}
        assert [bad["line"] for bad in error["bad_lines"]] == [2, 3]
        assert {row["error"]["code"] for row in lines_of(out) if row["error"]} <= {c.code for c in catalogue()}
        assert "unknown_endpoint" in error["message"]
        assert "job_body_too_large" in error["message"]
        assert [row["status"] for row in lines_of(out)] == ["completed", "refused", "refused", "completed"]
        first = await rewarm(*command, "--in-flight", "1", "--run", "x")
        assert (first.code, "unknown_endpoint" in first.err) == (11, True)
        rows = lines_of(out)
        assert [row["status"] for row in rows] == ["completed", "refused", "refused", "refused"]
        assert rows[3]["error"]["message"] == "not submitted, since another line was refused"
        both = await rewarm("submit", str(failing), "--url", gateway.url, "--on-bad-line", "skip")
        assert (both.code, "job_not_completed" in both.err) == (11, True)
        assert "1 completed, 1 failed, 2 refused: " in both.err, "of four lines"


async def test_jobs_that_fail_have_their_reason_in_their_row(tmp_path: Path) -> None:
    bodies = chats(3)
    bodies[1]["fake"] = {"fail_status": 400}
    file, out = write(tmp_path / "in.jsonl", bodies), tmp_path / "out.jsonl"
    async with fleet(tmp_path / "s") as (_, gateway):
        done = await rewarm("submit", str(file), "--out", str(out), "--url", gateway.url)
    assert done.code == 11
    assert "1 failed" in done.err
    rows = lines_of(out)
    assert [row["status"] for row in rows] == ["completed", "failed", "completed"]
    assert rows[1]["response"] is None
    assert "told to fail" in rows[1]["error"]["message"]


async def test_a_result_that_is_no_json_is_told_and_not_asked_for_again(tmp_path: Path) -> None:
    """Kept by a worker of an earlier version: the gateway's 502 is no trouble of the moment."""
    asked = 0

    async def gateway(request: web.Request) -> web.Response:
        nonlocal asked
        if request.path.endswith("/result"):
            asked += 1
            error = {"code": "engine_bad_response", "message": "the engine's answer is no JSON"}
            return web.json_response({"error": error}, status=502)
        return web.json_response({"id": "job-1", "status": "completed"})

    file, out = write(tmp_path / "in.jsonl", chats(1)), tmp_path / "out.jsonl"
    async with TestServer(gateway_app(gateway)) as server:
        url = f"http://127.0.0.1:{server.port}"
        done = await rewarm("submit", str(file), "--out", str(out), "--url", url, within_s=30)
    assert (done.code, "1 unknown" in done.err, asked) == (11, True, 1), done.err
    (row,) = lines_of(out)
    assert (row["status"], row["response"], row["error"]["code"]) == ("unknown", None, "engine_bad_response")


async def test_an_empty_file_and_a_missing_one(tmp_path: Path) -> None:
    async with fleet(tmp_path / "s", worker=False) as (_, gateway):
        empty = await rewarm("submit", str(write(tmp_path / "in.jsonl", ["", ""])), "--url", gateway.url)
        missing = await rewarm("submit", str(tmp_path / "none.jsonl"), "--url", gateway.url)
    assert (empty.code, "no request" in empty.err) == (2, True)
    assert (missing.code, "input_invalid" in missing.err) == (2, True)
    assert "none.jsonl cannot be read: No such file" in missing.err


async def test_without_a_gateway_it_says_so_at_once(tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl", chats(1))
    done = await rewarm("submit", str(file), "--url", "http://127.0.0.1:9", within_s=20)
    assert (done.code, "nothing_running" in done.err) == (5, True)


# --- what breaks -----------------------------------------------------------------------------------------------------


async def each_once(stack: Stack, gateway: Process, out: Path, log: EngineLog, count: int) -> None:
    assert [said(row) for row in lines_of(out)] == [f"You said: question {n}" for n in range(count)]
    jobs = await jobs_of(gateway)
    assert len(jobs) == count
    assert len({row["id"] for row in lines_of(out)}) == count
    assert {job["status"] for job in jobs} == {"completed"}
    assert log.count("end") == count, "and the engine answered each once"


async def test_a_gateway_that_is_killed_meanwhile(tmp_path: Path, engine_log: EngineLog) -> None:
    count = 150
    file, out = write(tmp_path / "in.jsonl", chats(count, user="t")), tmp_path / "out.jsonl"
    async with fleet(tmp_path / "s", "--log", str(engine_log.path), slots=8) as (stack, gateway):
        process = await start("submit", str(file), "--out", str(out), "--in-flight", "2", "--url", gateway.url)
        for share in (30, 70):
            await until(lambda share=share: submitted(out) >= share, f"{share} lines are submitted", every_s=0.002)
            await gateway.kill()
            assert submitted(out) < count, "in the middle"
            gateway = await again(stack, gateway)
        done = await finished(process)
        assert done.code == 0, done.err
        await each_once(stack, gateway, out, engine_log, count)


async def test_redis_that_is_killed_meanwhile(tmp_path: Path, engine_log: EngineLog) -> None:
    count = 100
    file, out = write(tmp_path / "in.jsonl", chats(count, user="t")), tmp_path / "out.jsonl"
    async with fleet(tmp_path / "s", "--log", str(engine_log.path), slots=8) as (stack, gateway):
        process = await start("submit", str(file), "--out", str(out), "--in-flight", "2", "--url", gateway.url)
        await until(lambda: submitted(out) >= 30, "30 lines are submitted", every_s=0.002)
        redis = next(p for p in stack.processes if p.name == "redis")
        await redis.kill()
        assert submitted(out) < count
        await stack.start_redis()
        done = await finished(process, 90)
        assert done.code == 0, done.err
        rows, jobs = lines_of(out), await jobs_of(gateway)
        assert [said(row) for row in rows] == [f"You said: question {n}" for n in range(count)]
        assert len(jobs) == count


async def test_the_command_itself_is_killed_and_started_again(tmp_path: Path, engine_log: EngineLog) -> None:
    count = 120
    file, out = write(tmp_path / "in.jsonl", chats(count, user="t")), tmp_path / "out.jsonl"
    async with fleet(tmp_path / "s", "--log", str(engine_log.path), slots=8) as (stack, gateway):
        command = ("submit", str(file), "--out", str(out), "--in-flight", "2", "--url", gateway.url)
        process = await start(*command)
        await until(lambda: submitted(out) >= 30, "30 lines are submitted", every_s=0.002)
        process.kill()
        await finished(process)
        known = submitted(out)
        assert 30 <= known < count
        assert not out.exists()
        if engine_log.path.exists():
            out.with_name(out.name + ".state").unlink()  # and even what it had written down is gone
        done = await rewarm(*command)
        assert done.code == 0, done.err
        await each_once(stack, gateway, out, engine_log, count)


async def test_ctrl_c_leaves_the_jobs_and_says_how_to_go_on(tmp_path: Path, engine_log: EngineLog) -> None:
    file, out = write(tmp_path / "in.jsonl", chats(4, user="t", fake=SLOW)), tmp_path / "out.jsonl"
    async with fleet(tmp_path / "s", "--log", str(engine_log.path)) as (stack, gateway):
        command = ("submit", str(file), "--out", str(out), "--url", gateway.url)
        process = await start(*command)
        await until(lambda: submitted(out) == 4, "all are submitted")
        process.send_signal(signal.SIGINT)
        done = await finished(process, 30)
        assert done.code == 130
        assert "goes on" in done.err
        assert "rewarm submit" in done.err
        assert str(file) in done.err
        assert "Traceback" not in done.err

        async def all_completed() -> bool:
            return [job["status"] for job in await jobs_of(gateway)] == ["completed"] * 4

        await until(all_completed, "the jobs went on")
        assert (await rewarm(*command)).code == 0
        await each_once(stack, gateway, out, engine_log, 4)


async def test_a_full_gateway_is_waited_for(tmp_path: Path, engine_log: EngineLog) -> None:
    count = 30
    file, out = write(tmp_path / "in.jsonl", chats(count, user="t")), tmp_path / "out.jsonl"
    async with fleet(tmp_path / "s", "--log", str(engine_log.path), jobs={"max_per_tenant": 10}) as (stack, gateway):
        done = await rewarm("submit", str(file), "--out", str(out), "--url", gateway.url, within_s=90)
        assert done.code == 0, done.err
        await each_once(stack, gateway, out, engine_log, count)


async def test_two_at_once_do_not_write_the_same_output(tmp_path: Path) -> None:
    file, out = write(tmp_path / "in.jsonl", chats(2, fake=SLOW)), tmp_path / "out.jsonl"
    async with fleet(tmp_path / "s") as (_, gateway):
        command = ("submit", str(file), "--out", str(out), "--url", gateway.url)
        process = await start(*command)
        await until(lambda: submitted(out) == 2, "the first is under way")
        second = await rewarm(*command)
        assert (second.code, "another" in second.err) == (6, True)
        assert (await finished(process)).code == 0


async def test_nobody_answering_for_too_long_ends_it_with_everything_kept(tmp_path: Path) -> None:
    file, out = write(tmp_path / "in.jsonl", chats(3, fake=SLOW)), tmp_path / "out.jsonl"
    async with fleet(tmp_path / "s") as (stack, gateway):
        command = ("submit", str(file), "--out", str(out), "--url", gateway.url)
        process = await start(*command, "--patience", "2")
        await until(lambda: submitted(out) == 3, "all are submitted")
        await gateway.kill()
        done = await finished(process, 30)
        assert (done.code, "nothing_running" in done.err) == (5, True)
        gateway = await again(stack, gateway)
        assert (await rewarm(*command)).code == 0
        assert len(await jobs_of(gateway)) == 3
