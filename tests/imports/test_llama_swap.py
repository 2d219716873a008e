"""llama-swap's configuration as ours: what is said there is done here, and what is not is told with its line."""

from __future__ import annotations

import hashlib
import shlex
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from rewarm.config import CommandModel, Config, parse
from rewarm.config.remote import RemoteModel
from rewarm.errors import ConfigInvalid
from rewarm.imports import Imported, from_llama_swap
from rewarm.imports.llama_swap.macros import MacroProblem, Macros
from tests.cli.commands import rewarm
from tests.e2e.stack import ROOT, Stack, chat, post, text_of

EXAMPLE = Path(__file__).with_name("llama-swap.yaml")
SERVER = f"{sys.executable} {ROOT / 'tests' / 'programs' / 'fake_engine.py'}"


def imported(text: str | None = None, **environment: str) -> Imported:
    text = EXAMPLE.read_text() if text is None else text
    return from_llama_swap(text, "config.yaml", environment={"SERVER": SERVER, **environment})


def config(text: str | None = None) -> Config:
    return parse(imported(text).text)


def model(name: str, text: str | None = None) -> CommandModel:
    return model_of(config(text), name)


def model_of(of: Config, name: str = "m") -> CommandModel:
    found = of.models[name]
    assert isinstance(found, CommandModel)
    return found


def one(fields: str, **top: object) -> str:
    """A file with one model, with these fields."""
    head = yaml.safe_dump(top) if top else ""
    return f"{head}models:\n  m:\n" + "".join(f"    {line}\n" for line in fields.splitlines())


def test_commands_have_their_macros_and_lose_their_comments() -> None:
    echo = model("echo")
    assert echo.cmd == (
        *shlex.split(SERVER),
        *("--port", "${PORT}", "--host", "127.0.0.1"),
        *("--start-delay", "0.1", "--token-delay", "0.001"),
    )
    assert "0.3" in model("slow-echo").cmd, "the model's own macro"
    assert "/models/with a space.gguf" in model("container").cmd


def test_names_clocks_and_environment() -> None:
    echo, slow, fixed = model("echo"), model("slow-echo"), model("fixed")
    assert echo.aliases == ("gpt-4o-mini", "gpt-4o")
    assert (echo.idle_after, slow.idle_after) == (timedelta(seconds=60), timedelta(seconds=600))
    assert echo.env == {"GREETING": "good day", "WHERE": "port ${PORT}"}
    assert echo.initialising_stall == timedelta(seconds=300)
    assert (slow.upstream_model, slow.slots, slow.unlisted, slow.readiness_path) == ("upstream/echo", 2, True, "none")
    assert (fixed.port, fixed.readiness_path, fixed.stop_cmd) == (8999, "/custom-endpoint", ("/opt/stop", "${PID}"))
    assert (fixed.stop_grace, fixed.slots, str(fixed.source)) == (timedelta(seconds=20), 3, "/srv/models/qwen.gguf")
    assert model("container").stop_cmd == ("docker", "stop", "container")


def test_keys_are_kept_as_digests_and_peers_become_remotes() -> None:
    found = config()
    assert [key.sha256 for key in found.keys] == [hashlib.sha256(b"sk-hunter2").hexdigest()]
    router, door = found.models["z-ai/glm-4.7"], found.models["model_a"]
    assert isinstance(router, RemoteModel)
    assert isinstance(door, RemoteModel)
    assert (router.url, router.key_env) == ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY")
    assert (door.url, door.key_env) == ("http://192.168.1.23/v1", "NEXT_DOOR_API_KEY")
    assert "sk-not-for-a-file" not in imported().text
    assert "sk-hunter2" not in imported().text


def test_what_could_not_be_said_is_told_by_line() -> None:
    lines = EXAMPLE.read_text().splitlines()
    lost = {remark.field: remark for remark in imported().remarks if remark.lost}
    assert sorted(lost) == [
        "apiKeys[1]",
        "captureBuffer",
        "groups.small",
        "hooks.on_startup.preload",
        "models.broken.cmd",
        "models.echo.aliases",
        "models.slow-echo.filters",
        "models.slow-echo.metadata",
        "peers.next-door.apiKey",
    ]
    for field, written in (
        ("apiKeys[1]", "MISSING_KEY"),
        ("captureBuffer", "captureBuffer"),
        ("groups.small", '"small"'),
        ("models.broken.cmd", "no_such_macro"),
        ("models.slow-echo.filters", "filters"),
        ("peers.next-door.apiKey", "sk-not-for-a-file"),
    ):
        assert written in lines[lost[field].line - 1]
    assert "there is no macro ${no_such_macro}" in lost["models.broken.cmd"].text
    assert "broken" not in config().models


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("", 1),  # llama-swap's own way: one at a time
        ("groups: {g: {swap: false, members: [a, b, c]}}", 3),
        ("groups: {g: {swap: true, members: [a, b]}, h: {swap: true, members: [c]}}", 1),
        ("groups: {g: {members: [a, b]}, h: {swap: false, exclusive: false, persistent: true, members: [c]}}", 2),
        ("matrix: {vars: {x: a, y: b, z: c}, sets: {s: '(x | y) & z'}}", 2),
        ("matrix: {vars: {x: a, y: b, z: c}, sets: {l: 'x | y', s: '+l & z', t: '(x & y) & z'}}", 3),
        ("matrix: {vars: {x: a}, sets: {s: 'x & (y'}}", 1),
        ("matrix: {vars: {x: a}, sets: {s: '+s'}}", 1),
    ],
)
def test_how_many_run_at_once_is_kept(text: str, most: int) -> None:
    models = "models:\n" + "".join(f"  {name}: {{cmd: 'serve --port ${{PORT}}'}}\n" for name in "abc")
    assert config(f"{models}{text}\n").placement.max_models == most


def test_a_persistent_group_pins_its_models() -> None:
    assert model("fixed").pinned
    assert not model("echo").pinned


def test_never_unloaded_is_the_default_there() -> None:
    assert model("m", one("cmd: serve --port ${PORT}")).idle_after == timedelta(days=365)
    assert model("m", one("cmd: serve --port ${PORT}\nttl: 0", globalTTL=60)).idle_after == timedelta(days=365)
    assert model("m", one("cmd: serve --port ${PORT}", globalTTL=60)).idle_after == timedelta(seconds=60)


def test_weights_by_a_relative_path_are_not_guessed_at() -> None:
    """A path in `cmd` starts at the worker's folder, one in `source` at the configuration's."""
    assert model("m", one("cmd: llama-server --port ${PORT} -m models/a.gguf")).source is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models: [", "config.yaml:1: not valid YAML"),
        ("- a", "config.yaml:1: the file must be a mapping"),
        ("fleet: x", "is this a configuration of llama-swap?"),
    ],
)
def test_what_is_no_such_file_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"config\.yaml") as error:
        imported(text)
    assert says in error.value.message


@pytest.mark.parametrize("field", ["surprise: 1", "cmdStart: x"])
def test_a_field_of_a_newer_version_is_not_passed_over(field: str) -> None:
    told = imported(one(f"cmd: serve --port ${{PORT}}\n{field}"))
    assert [r.text for r in told.remarks if r.lost] == ["this field is not known here"]
    assert imported(one("cmd: serve --port ${PORT}", surprise=1)).partial


def test_macros_use_each_other_but_not_themselves() -> None:
    macros = Macros({"a": "1 ${b}", "b": 2, "t": True, "x": "${y}", "y": "${x}"}, {"HOME": "/h"}, "m")
    assert macros.fill("${a} ${MODEL_ID} ${env.HOME} ${PORT} ${t}") == "1 2 m /h ${PORT} true"
    for text in ("${x}", "${nobody}", "${env.NOBODY}"):
        with pytest.raises(MacroProblem):
            macros.fill(text)


@pytest.mark.asyncio
async def test_the_command_writes_a_file_once_and_says_what_is_missing(tmp_path: Path) -> None:
    environment = {"SERVER": SERVER}
    target = tmp_path / "rewarm.yaml"
    done = await rewarm("import", "llama-swap", str(EXAMPLE), "-o", str(target), env=environment)
    assert (done.code, done.out) == (12, "")
    line = 1 + EXAMPLE.read_text().splitlines().index("captureBuffer: 15")
    assert f"{EXAMPLE}:{line}: not converted: captureBuffer: requests and answers are not recorded" in done.err
    written = target.read_text()
    assert (await rewarm("check", str(target))).code == 0

    again = await rewarm("import", "llama-swap", str(EXAMPLE), "-o", str(target), env=environment)
    assert (again.code, "output_exists" in again.err, target.read_text()) == (2, True, written)

    whole = tmp_path / "whole.yaml"
    whole.write_text(one("cmd: serve --port ${PORT} -m /a.gguf\nttl: 5"))
    done = await rewarm("import", "llama-swap", str(whole))
    assert (done.code, done.err) == (0, "")
    assert model_of(parse(done.out)).idle_after == timedelta(seconds=5)


@pytest.mark.asyncio
async def test_the_example_serves(tmp_path: Path) -> None:
    """Its models wake and answer, by alias and with the upstream's name."""
    given = yaml.safe_load(imported().text)
    models = {name: {**given["models"][name], "memory": "100MiB"} for name in ("echo", "slow-echo")}
    async with Stack(tmp_path / "fleet", models) as stack:
        serve = await stack.start_serve()
        status, body, _ = await post(serve.url, chat("gpt-4o-mini", "hello"))
        assert (status, text_of(body)) == (200, "You said: hello")
        status, body, _ = await post(serve.url, chat("slow-echo", "hello"))
        assert (status, text_of(body)) == (200, "You said: hello")
        assert await serve.terminate() == 0
        assert stack.leftovers() == []
