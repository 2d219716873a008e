"""``rewarm snapshot …`` as a person and as a program use it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rewarm.cli.main import main
from tests.snapshots.making import make_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Result]:
    def run(*arguments: str, exit_code: int = 0) -> Result:
        command = [arguments[0], "--store", str(tmp_path / "store"), "--floor", "0", *arguments[1:]]
        result = CliRunner().invoke(main, ["snapshot", *command], catch_exceptions=False)
        assert result.exit_code == exit_code, result.output
        return result

    return run


@pytest.fixture
def ask(run: Callable[..., Result]) -> Callable[..., Any]:
    def ask(*arguments: str, exit_code: int = 0) -> Any:
        return json.loads(run(*arguments, "--json", exit_code=exit_code).stdout)

    return ask


@pytest.fixture
def folder(tmp_path: Path) -> str:
    make_checkpoint(tmp_path / "checkpoint")
    return str(tmp_path / "checkpoint")


def test_from_a_folder_to_the_bin(run: Callable[..., Result], folder: str) -> None:
    assert "made tiny@portable-" in run("create", "tiny", folder).output
    assert "is there already" in run("create", "tiny", folder).output
    assert "tiny@portable-" in run("list").output
    shown = run("show", "tiny").output
    assert "model-rank-0-part-0.safetensors" in shown
    assert "blake3:" in shown
    assert run("verify").output.startswith("good     tiny@portable-")
    run("pin", "tiny")
    assert "pinned" in run("list").output
    assert "unpin it first" in run("evict", "tiny", exit_code=9).output
    run("unpin", "tiny")
    assert run("evict", "tiny").output.startswith("evicted tiny@")
    assert "removed 0 folders" in run("gc").output


def test_for_programs(ask: Callable[..., Any], folder: str) -> None:
    made = ask("create", "tiny", folder, "--priority", "4", "--revision", "r1", "--pin")
    assert made["new"]
    assert (made["priority"], made["pinned"]) == (4, True)
    listed = ask("list")
    assert [entry["id"] for entry in listed["snapshots"]] == [made["id"]]
    assert listed["used_bytes"] > made["size_bytes"]
    manifest = ask("show", made["id"])["manifest"]
    assert manifest["flavour"] == "portable"
    assert manifest["fingerprint"]["revision"] == "r1"
    assert ask("verify", made["id"])["verified"][0]["problem"] is None
    assert ask("unpin", "tiny")["pinned"] is False
    assert ask("evict", "tiny")["removed"] is True
    assert ask("gc") == {"removed": 0, "freed_bytes": 0, "in_use": 0}


def test_damage_is_found_named_and_quarantined(
    ask: Callable[..., Any], run: Callable[..., Result], folder: str
) -> None:
    made = ask("create", "tiny", folder)
    path = Path(made["folder"]) / "tokenizer.json"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"7", b"8"))
    kept = ask("verify", "--keep", exit_code=10)
    assert "tokenizer.json" in kept["verified"][0]["problem"]
    assert ask("list")["snapshots"][0]["quarantine"] is None
    ask("verify", exit_code=10)
    assert ask("list")["snapshots"][0]["quarantine"]["kind"] == "digest"
    assert "quarantined" in run("list").output
    assert "digest: " in run("show", "tiny").output
    assert ask("gc", "--quarantined")["removed"] == 1


@pytest.mark.parametrize(
    ("command", "code", "exit_code"),
    [
        (("show", "nothing"), "snapshot_not_found", 9),
        (("create", "m", "/no/such/folder"), "weights_missing", 10),
        (("create", "m", "ftp://x"), "source_unavailable", 9),
        (("create", "--capacity", "1kB", "m", "FOLDER"), "store_full", 9),
    ],
)
def test_errors_have_codes(
    ask: Callable[..., Any], folder: str, command: tuple[str, ...], code: str, exit_code: int
) -> None:
    answer = ask(*(folder if part == "FOLDER" else part for part in command), exit_code=exit_code)
    assert answer["error"]["code"] == code
    assert answer["error"]["advice"]


def test_a_store_where_something_else_lies(tmp_path: Path) -> None:
    (tmp_path / "music").touch()
    result = CliRunner().invoke(main, ["snapshot", "list", "--store", str(tmp_path), "--json"])
    assert result.exit_code == 9
    assert json.loads(result.stdout)["error"]["code"] == "store_invalid"


def test_a_gguf_file_as_it_is(ask: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF" + bytes(range(256)) * 100)
    made = ask("create", "tiny", str(tmp_path / "tiny.gguf"), "--gguf", "as-is")
    assert (Path(made["folder"]) / "tiny.gguf").is_file()


def test_a_snapshot_copied_from_another_store(ask: Callable[..., Any], folder: str, tmp_path: Path) -> None:
    made = ask("create", "tiny", folder)
    result = CliRunner().invoke(
        main, ["snapshot", "create", "--store", str(tmp_path / "other"), "tiny", made["folder"], "--json"]
    )
    assert json.loads(result.stdout)["id"] == made["id"]
