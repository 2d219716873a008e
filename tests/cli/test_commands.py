"""The commands that need no running fleet: check, paths, help, and how errors come out."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import gateway
from rewarm.cli import api
from rewarm.cli.main import main
from rewarm.cli.options import paths_of
from rewarm.config import Config, load

GOOD = """
fleet: t
state_dir: state
gateway: {listen: "127.0.0.1:0"}
models:
  echo:
    engine: command
    cmd: sh -c true ${PORT}
    aliases: [parrot]
"""


def rewarm(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "rewarm.yaml"
    path.write_text(GOOD)
    return path


def test_check_of_a_good_file(config: Path) -> None:
    result = rewarm("check", str(config))
    assert result.exit_code == 0, result.output
    assert "nothing to complain about" in result.output


def test_check_explains_every_error_by_line_and_field(config: Path) -> None:
    config.write_text(GOOD.replace("listen:", "lissen:") + "    slots: zero\n")
    result = rewarm("check", str(config))
    assert result.exit_code == 2
    assert f"{config}:4: error: gateway.lissen: unknown field; did you mean 'listen'?" in result.output
    assert f"{config}:10: error: models.echo.slots:" in result.output
    assert "2 errors" in result.output


def test_check_as_json(config: Path) -> None:
    config.write_text(GOOD + "    slots: zero\n")
    result = rewarm("check", str(config), "--json")
    found = json.loads(result.output)
    assert (result.exit_code, found["ok"]) == (2, False)
    assert [(f["level"], f["line"], f["field"]) for f in found["findings"]] == [("error", 10, "models.echo.slots")]


def test_check_of_broken_yaml_names_the_line(config: Path) -> None:
    config.write_text("models: {\n  a: [")
    result = rewarm("check", str(config), "--json")
    assert result.exit_code == 2
    assert json.loads(result.output)["findings"][0]["line"] > 0


def test_check_of_a_missing_file(tmp_path: Path) -> None:
    result = rewarm("check", str(tmp_path / "none.yaml"))
    assert result.exit_code == 2
    assert "config_not_found" in result.output


def test_check_warns_of_what_will_not_work_here(config: Path, tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config.write_text(
            f"""
gateway: {{listen: "127.0.0.1:{port}"}}
worker: {{memory: 1GiB}}
models:
  gone: {{engine: vllm, source: nowhere}}
  empty: {{engine: vllm, source: weights}}
  large: {{engine: command, cmd: "no-such-program-at-all $PORT", memory: 2GiB}}
""".replace("$PORT", "${PORT}")
        )
        result = rewarm("check", str(config), "--json")
    found = json.loads(result.output)
    assert (result.exit_code, found["ok"]) == (0, True), "warnings are no errors"
    said = {f["field"]: f["message"] for f in found["findings"]}
    assert "no folder" in said["models.gone.source"]
    assert "no *.safetensors" in said["models.empty.source"]
    assert "PATH" in said["models.large.cmd"]
    assert "needs 2.0 GiB, as configured; this worker's whole budget of RAM is 1.0 GiB" in said["models.large.memory"]
    assert "[never_fits]" in said["models.large.memory"]
    assert "Address already in use" in said["gateway.listen"]


def test_an_open_door_without_keys_is_an_error(config: Path) -> None:
    config.write_text(GOOD.replace("127.0.0.1:0", "0.0.0.0:0"))
    result = rewarm("check", str(config))
    assert result.exit_code == 2
    assert f"{config}:4: error: gateway.listen: without `keys`" in result.output
    assert f"{config}: 1 error\n" in result.output


def test_findings_come_in_the_order_of_the_file(config: Path) -> None:
    config.write_text("models:\n  m.1: {engine: vllm, source: gone}\ngateway: {lissen: x}\nfleet: a b\n")
    lines = [f["line"] for f in json.loads(rewarm("check", str(config), "--json").output)["findings"]]
    assert lines == [3, 4]
    config.write_text("models:\n  m.1:\n    engine: vllm\n    source: gone\nworker: {memory: 900TiB}\n")
    found = json.loads(rewarm("check", str(config), "--json").output)["findings"]
    assert [(f["line"], f["field"]) for f in found][-2:] == [(4, "models.m.1.source"), (5, "worker.memory")]
    config.write_text("models:\n  m: {engine: vllm, source: gone}\ngateway: {listen: '127.0.0.1:0'}\n")
    assert f"{config}: 1 model, 1 warning\n" in rewarm("check", str(config)).output


@pytest.mark.parametrize(
    ("data", "line", "says"), [(b"a: 1\n\xff\xfe", 2, "not UTF-8 text"), (b"\x7fELF\x00\n", 1, "not text")]
)
def test_a_file_that_is_no_text(config: Path, data: bytes, line: int, says: str) -> None:
    config.write_bytes(data)
    result = rewarm("check", str(config), "--json")
    found = json.loads(result.output)["findings"]
    assert (result.exit_code, len(found), found[0]["line"], found[0]["field"]) == (2, 1, line, "file")
    assert says in found[0]["message"]


def test_paths(config: Path) -> None:
    found = json.loads(rewarm("paths", str(config), "--json").output)
    assert found["state"] == str(config.parent / "state")
    assert found["engine_logs"] == {"echo": str(config.parent / "state" / "logs" / "engine-echo.log")}
    assert found["redis"].endswith("redis.sock")
    left = config.parent / "state" / "logs" / "engine-removed.log"
    left.parent.mkdir(parents=True)
    left.touch()
    text = rewarm("paths", str(config)).output
    assert str(config.parent / "state") in text
    assert f"{left}  (removed)" in text


def test_help_lists_every_command() -> None:
    text = rewarm("--help").output
    for name in ("serve", "gateway", "worker", "check", "ps", "wake", "sleep", "drain", "paths", "submit", "jobs"):
        assert name in text
    for listing in (text, rewarm("snapshot", "--help").output, rewarm("jobs", "--help").output):
        assert "..." not in listing.partition("Commands:")[2], "nothing is cut off"


def test_a_wrong_option_is_a_usage_error() -> None:
    assert rewarm("ps", "--nonsense").exit_code == 2


@pytest.mark.parametrize(
    "command",
    [
        ["ps"],
        ["wake", "m"],
        ["sleep", "m"],
        ["drain", "w"],
        ["jobs", "ls"],
        ["jobs", "watch", "j"],
        ["jobs", "result", "j"],
    ],
)
def test_without_a_gateway_the_commands_say_so(command: list[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        result = rewarm(*command, "--url", url)
        as_json = rewarm(*command, "--url", url, "--json")
    assert result.exit_code == 5
    assert "nothing_running" in result.output
    assert json.loads(as_json.stdout)["error"]["code"] == "nothing_running"


@pytest.mark.parametrize("name", ["gateway", "worker"])
def test_a_process_of_its_own_needs_a_redis(name: str, config: Path) -> None:
    result = rewarm(name, str(config))
    assert result.exit_code == 3
    assert "redis_unreachable" in result.output


def test_the_operator_token_is_where_the_gateway_puts_it(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line repeats two names of the gateway's room in order to start fast."""
    paths = paths_of(load(config))
    assert api.TOKEN_HEADER == gateway.TOKEN_HEADER
    assert paths.run / api.TOKEN_FILE == gateway.token_path(paths)
    paths.make()
    gateway.token_path(paths).write_text("t0ken\n")
    assert api.Gateway.find(None, config, None).token == "t0ken"
    assert api.Gateway.find("http://elsewhere.example:80", config, None).token is None, "never leaves the machine"


def test_commands_start_without_importing_the_rooms(config: Path) -> None:
    """`rewarm ps` in a loop must not cost a second of imports each time."""
    import subprocess
    import sys

    code = (
        "import sys\nfrom rewarm.cli.main import main\n"
        f"main(['check', {str(config)!r}], standalone_mode=False)\n"
        "sys.exit(any(m in sys.modules for m in ('aiohttp', 'redis', 'fleet', 'gateway', 'worker')))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False).returncode == 0


def test_default_configuration_has_an_example_free_url() -> None:
    assert api.Gateway.find(None, None, None).url == "http://127.0.0.1:8080"
    assert Config().gateway.port == 8080
