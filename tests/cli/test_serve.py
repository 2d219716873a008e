"""``rewarm serve`` with everything real but the engine: it starts all, answers, restarts what dies, leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio
import yaml

from fleet import FleetClient, Registry
from rewarm.cli.supervisor import Child, Supervisor
from rewarm.errors import RedisUnreachable
from tests.e2e.stack import ROOT, Process, Stack, chat, fake, free_port, post, text_of, until

pytestmark = pytest.mark.redis


@pytest_asyncio.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with Stack(tmp_path, {"echo": fake("--start-delay", "0.3")}) as made:
        yield made
        for process in made.processes:  # pytest shows it when the test failed
            sys.stderr.write(f"--- {process.name}\n{process.text()[-6000:]}\n")


async def command(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of a `rewarm` command."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rewarm",
        *arguments,
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def children(serve: Process, name: str) -> list[psutil.Process]:
    """The supervisor's living children of that name."""
    found = []
    for process in psutil.Process(serve.pid).children():
        with contextlib.suppress(psutil.Error):  # ended meanwhile
            if name in (_role(process.cmdline()), process.name()):
                found.append(process)
    return found


def _role(command: list[str]) -> str:
    """What `rewarm` was told to be; empty of another program."""
    return command[command.index("rewarm") + 1] if "rewarm" in command[:-1] else ""


async def child(serve: Process, name: str) -> psutil.Process:
    found: list[psutil.Process] = await until(lambda: children(serve, name), f"the {name} runs")
    return found[0]


async def metrics(serve: Process) -> str:
    async with aiohttp.ClientSession() as http, http.get(f"{serve.url}/metrics") as answer:
        return await answer.text()


async def ask(serve: Process) -> str:
    status, body, _ = await post(serve.url, chat("echo", "hello"))
    assert status == 200, body
    return text_of(body)


@pytest.mark.asyncio
async def test_the_whole_story(stack: Stack) -> None:
    serve = await stack.start_serve()
    await until(lambda: "curl -N" in serve.text(), "the banner shows a request to try")
    assert await ask(serve) == "You said: hello"

    code, out, _ = await command("ps", "--url", serve.url, "--json")
    status = json.loads(out)
    assert (code, status["models"]["echo"]["state"]) == (0, "ready")
    code, out, _ = await command("ps", "--url", serve.url)
    assert code == 0
    assert "echo" in out
    assert "ready" in out

    code, out, _ = await command("sleep", "echo", "--url", serve.url)
    assert code == 0
    await until(lambda: not stack.engines(), "the engine is gone")

    code, out, _ = await command("wake", "echo", "--url", serve.url, "--json")
    woken = json.loads(out)
    assert (code, woken["state"]) == (0, "ready")
    code, out, _ = await command("drain", woken["replica"], "--url", serve.url, "--json")
    assert (code, json.loads(out)["replica"]) == (0, woken["replica"])
    await until(lambda: not stack.engines(), "the replica is gone")

    code, out, _ = await command("sleep", "echo", "--url", serve.url)
    assert (code, "already at zero" in out) == (0, True)
    code, _, err = await command("wake", "nobody", "--url", serve.url)
    assert (code, "model_not_found" in err) == (6, True)
    code, _, err = await command("drain", "nobody", "--url", serve.url)
    assert (code, "command_refused" in err) == (6, True)

    assert await serve.terminate() == 0
    assert stack.leftovers() == [], "no process, no Redis"


@pytest.mark.asyncio
async def test_what_the_banner_shows_works_when_it_is_shown(stack: Stack) -> None:
    port = free_port()
    config = stack.config("serve", gateway={"listen": f"127.0.0.1:{port}"})
    serve = await stack.spawn("serve", sys.executable, "-m", "rewarm", "serve", str(config), port=port)
    await until(lambda: "starting …" in serve.text(), "it says at once that it starts")
    await until(lambda: "curl -N" in serve.text(), "the banner")
    assert await ask(serve) == "You said: hello", "nothing was waited for in between"
    assert "ready in " in serve.text()


@pytest.mark.asyncio
async def test_waking_what_cannot_load_fails_with_its_reason(stack: Stack) -> None:
    stack.models["broken"] = fake("--exit-at-start", "3", load_attempts=1)
    serve = await stack.start_serve()
    config = stack.folder / "serve.yaml"
    code, _, err = await command("wake", "broken", "--config", str(config))
    assert code == 7
    assert "wake_failed" in err
    log = stack.folder / "state-serve" / "logs" / "engine-broken.log"
    assert f"the last lines of the engine's log {log}:" in err
    code, out, _ = await command("wake", "broken", "--config", str(config), "--json")
    assert (code, json.loads(out)["error"]["log"]) == (7, str(log))
    assert await ask(serve) == "You said: hello", "the others are served"


@pytest.mark.asyncio
async def test_killed_children_are_restarted(stack: Stack) -> None:
    serve = await stack.start_serve()
    for name in ("gateway", "worker"):
        victim = await child(serve, name)
        victim.kill()

        def replaced(name: str = name, old: int = victim.pid) -> bool:
            return any(p.pid != old for p in children(serve, name))

        await until(replaced, f"the {name} runs again")
        await stack.healthy(serve)
        assert await ask(serve) == "You said: hello"


@pytest.mark.asyncio
async def test_a_killed_redis_is_restarted(stack: Stack) -> None:
    serve = await stack.start_serve()
    (await child(serve, "redis-server")).kill()
    await until(lambda: serve.text().count("private redis runs") == 2, "Redis runs again")

    async def reached() -> bool:
        return bool((await stack.status(serve))["redis"] == "ok")

    await until(reached, "the gateway has found it")
    assert await ask(serve) == "You said: hello"


@pytest.mark.asyncio
async def test_a_child_that_misses_redis_at_its_start_is_started_again() -> None:
    starts = 0
    code = f"import sys; sys.exit({RedisUnreachable.exit_code})"
    child = Child("worker", [sys.executable, "-c", code], stop_within_s=1)

    async def before_start() -> None:
        nonlocal starts
        starts += 1
        if starts == 2:
            supervisor.signalled()

    supervisor = Supervisor([child], before_start=before_start)
    await supervisor.run()
    assert starts == 2


@pytest.mark.asyncio
async def test_nothing_outlives_a_killed_supervisor(stack: Stack) -> None:
    serve = await stack.start_serve()
    await ask(serve)
    assert stack.engines()
    await serve.kill()
    await until(lambda: not stack.leftovers(), "everything is gone", 20)


@pytest.mark.asyncio
async def test_a_running_request_outlives_sigterm(stack: Stack) -> None:
    serve = await stack.start_serve()
    await ask(serve)
    body = chat("echo", "one two three four five six seven eight nine ten", fake={"token_delay": 0.3})
    running = asyncio.create_task(post(serve.url, body))

    async def busy() -> bool:
        return any(r["in_flight"] for r in await stack.replicas(serve, "echo"))

    await until(busy, "the request runs")
    serve.signal(signal.SIGTERM)
    status, answer, _ = await running
    assert status == 200
    assert "ten" in text_of(answer), "it finished after the signal"
    assert await asyncio.wait_for(serve.popen.wait(), 30) == 0
    assert stack.leftovers() == []


@pytest.mark.asyncio
async def test_a_second_signal_does_not_wait(stack: Stack) -> None:
    serve = await stack.start_serve()
    await ask(serve)
    body = chat("echo", "word " * 200, fake={"token_delay": 0.5})
    running = asyncio.create_task(post(serve.url, body))

    async def busy() -> bool:
        return any(r["in_flight"] for r in await stack.replicas(serve, "echo"))

    await until(busy, "the request runs")
    serve.signal(signal.SIGINT)
    await until(lambda: "stopping:" in serve.text(), "the first signal was heard")
    serve.signal(signal.SIGINT)
    await asyncio.wait_for(serve.popen.wait(), 20)
    assert stack.leftovers() == []
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.asyncio
async def test_a_port_in_use_is_exit_code_4(stack: Stack) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        code, _, err = await command("serve", str(stack.config("serve", gateway={"listen": listen})))
        await stack.start_redis()
        alone = await command("gateway", str(stack.config("gateway", gateway={"listen": listen})))
    assert code == alone[0] == 4
    assert listen in err
    assert listen in alone[2]
    assert "port_in_use" in err
    assert "port_in_use" in alone[2]
    client = await FleetClient.connect(stack.redis_url or "", stack.fleet)
    try:
        view = await Registry(client).snapshot()
        assert (view.leader, view.catalogue) == (None, {}), "who cannot listen does not lead"
    finally:
        await client.close()


@pytest.mark.asyncio
async def test_an_open_door_without_keys_is_refused_before_anything_starts(stack: Stack) -> None:
    path = stack.config("serve", gateway={"listen": f"0.0.0.0:{free_port()}"})
    for command_name in ("serve", "gateway", "worker"):
        code, out, _ = await command(command_name, str(path), "--json")
        told = json.loads(out)["error"]
        assert (code, told["code"]) == (2, "config_invalid")
        assert ": gateway.listen: " in told["message"]
    assert not (stack.folder / "state-serve").exists(), "nothing was started"


@pytest.mark.asyncio
async def test_a_bad_configuration_is_exit_code_2(stack: Stack, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("models:\n  m: {engine: command}\n")
    code, out, _ = await command("serve", str(path), "--json")
    assert code == 2
    assert json.loads(out)["error"]["code"] == "config_invalid"
    assert f"{path}:2: models.m.cmd: is required" in json.loads(out)["error"]["message"]


@pytest.mark.asyncio
async def test_an_unreachable_redis_is_exit_code_3(stack: Stack, tmp_path: Path) -> None:
    path = stack.config("serve", gateway={"listen": f"127.0.0.1:{free_port()}"}, redis={"url": f"unix://{tmp_path}/no"})
    code, _, err = await command("serve", str(path))
    assert code == 3
    assert "redis_unreachable" in err
    assert stack.leftovers() == []


@pytest.mark.asyncio
async def test_sighup_reloads_the_models_and_keeps_the_old_ones_if_the_file_is_bad(stack: Stack) -> None:
    serve = await stack.start_serve()
    path = stack.folder / "serve.yaml"
    good = yaml.safe_load(path.read_text())

    path.write_text("models: [")
    serve.signal(signal.SIGHUP)
    await until(lambda: "not reloaded" in serve.text(), "the bad file is refused")
    assert await ask(serve) == "You said: hello"
    state = (await stack.status(serve))["configuration"]
    assert f"{path}:1: not valid YAML" in state["problem"]
    assert "rewarm_config_sound 0.0" in await metrics(serve)

    path.write_text(yaml.safe_dump({**good, "models": {"second": fake()}}))
    serve.signal(signal.SIGHUP)

    async def changed() -> bool:
        return list((await stack.status(serve))["models"]) == ["second"]

    await until(changed, "the new list of models")
    assert (await post(serve.url, chat("second", "hello")))[0] == 200
    assert (await post(serve.url, chat("echo", "hello")))[0] == 404
    await until(lambda: len(stack.engine_programs()) == 1, "the removed model has drained")


@pytest.mark.asyncio
async def test_a_changed_file_applies_without_a_signal(stack: Stack) -> None:
    """A key that is added is asked for at once; the memory budget waits for a restart, and the status says so."""
    serve = await stack.start_serve()
    path = stack.folder / "serve.yaml"
    good = yaml.safe_load(path.read_text())
    key = {"name": "team", "sha256": hashlib.sha256(b"secret").hexdigest()}
    path.write_text(yaml.safe_dump({**good, "keys": [key], "worker": {**good.get("worker", {}), "memory": "3GiB"}}))

    async def refused() -> bool:
        return (await post(serve.url, chat("echo", "hello")))[0] == 401

    await until(refused, "the new key is asked for")
    assert (await post(serve.url, chat("echo", "hello"), {"Authorization": "Bearer secret"}))[0] == 200
    state = (await stack.status(serve))["configuration"]
    assert (state["problem"], state["restart"], state["reloads"]) == ("", ["worker.memory"], 1)


@pytest.mark.asyncio
async def test_a_changed_model_is_replaced_and_no_request_fails(stack: Stack) -> None:
    """Twice, while others ask without a pause: the old replica serves until the new one has answered."""
    stack.worker["load_guard"] = "off"  # it would give the new replica a quarter of the machine
    serve = await stack.start_serve()
    path = stack.folder / "serve.yaml"
    good = yaml.safe_load(path.read_text())
    assert await ask(serve) == "You said: hello"
    statuses: list[int] = []
    stop = asyncio.Event()

    async def asking() -> None:
        while not stop.is_set():
            statuses.append((await post(serve.url, chat("echo", "hello", fake={"first_token_delay": 0.1})))[0])

    async def replaced() -> bool:
        replicas = await stack.replicas(serve, "echo")
        ready = [r["replica"] for r in replicas if r["state"] == "ready"]
        return len(ready) == 1 and ready[0] != before and all(r["state"] in ("ready", "stopped") for r in replicas)

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(asking())
        for version in range(2):
            (before,) = [r["replica"] for r in await stack.replicas(serve, "echo") if r["state"] == "ready"]
            changed = {**good["models"]["echo"], "env": {"VERSION": str(version)}}
            path.write_text(yaml.safe_dump({**good, "models": {"echo": changed}}))
            serve.signal(signal.SIGHUP)
            await until(replaced, f"version {version} serves", 60)
        stop.set()
    assert set(statuses) == {200}
    assert len(stack.engine_programs()) == 1


@pytest.mark.asyncio
async def test_json_log_lines(stack: Stack) -> None:
    port = free_port()
    config = stack.config("serve", gateway={"listen": f"127.0.0.1:{port}"})
    serve = await stack.spawn("serve", sys.executable, "-m", "rewarm", "serve", str(config), "--json", port=port)
    await stack.healthy(serve)

    def told() -> dict[str, Any]:
        lines = [json.loads(line) for line in serve.text().splitlines()]
        return next((line for line in lines if line.get("event") == "ready"), {})

    ready = await until(told, "it says that it is ready")
    assert (ready["url"], ready["models"]) == (serve.url, ["echo"])

    def roles() -> set[str]:
        return {json.loads(line)["role"] for line in serve.text().splitlines()}

    await until(lambda: {"serve", "gateway", "worker"} <= roles(), "every process writes such lines")
    assert await serve.terminate() == 0


@pytest.mark.asyncio
async def test_gateway_and_worker_run_on_uvloop_and_as_children_of_serve(stack: Stack) -> None:
    serve = await stack.start_serve()
    for name in ("gateway", "worker"):
        pid = (await child(serve, name)).pid
        await until(lambda pid=pid: "uvloop" in Path(f"/proc/{pid}/maps").read_text(), f"the {name} runs on uvloop")
        assert os.getpgid(pid) != os.getpgid(serve.pid), "Ctrl-C must reach them through serve only"
