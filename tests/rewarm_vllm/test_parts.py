"""The parts that need no engine, and the promise that importing them brings none."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from rewarm_vllm import CanaryFailed, LoadOptions, check_canary
from rewarm_vllm.packed_format import PACKED_VERSION, PackedLinear, PackedTable, PlainTensor, encode, parse
from snapshots import Canary, ManifestInvalid, default_root
from tests.rewarm_vllm.engines import REPOSITORY


def test_importing_the_plugin_imports_no_engine() -> None:
    """A worker that only sizes models, and a machine without vLLM, pay nothing for it."""
    program = "import sys, rewarm_vllm, rewarm_vllm.plugin; sys.exit(any(m in sys.modules for m in ('vllm', 'torch')))"
    assert subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY).returncode == 0


def test_plain_vllm_finds_the_plugin() -> None:
    (entry,) = {e.value for e in entry_points(group="vllm.general_plugins") if e.name == "rewarm"}
    assert entry == "rewarm_vllm.plugin:register"


def test_options_are_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARM_SNAPSHOTS", "/somewhere")
    assert LoadOptions.parse(None).store_root == Path("/somewhere")
    assert LoadOptions.parse({"store": "/here"}).store_root == Path("/here")
    monkeypatch.delenv("REWARM_SNAPSHOTS")
    assert LoadOptions.parse({}).store_root == default_root()
    with pytest.raises(ValueError, match="unknown field `sotre`"):
        LoadOptions.parse({"sotre": "/here"})
    with pytest.raises(ValueError, match="Invalid enum value 'never'"):
        LoadOptions.parse({"verify": "never"})


def test_another_token_anywhere_fails_the_canary() -> None:
    recorded = Canary("Hi", (1, 2, 3))
    check_canary(recorded, [1, 2, 3])
    for said in ([1, 2, 4], [1, 2], [1, 2, 3, 4], []):
        with pytest.raises(CanaryFailed):
            check_canary(recorded, said)


TABLE = PackedTable(
    PACKED_VERSION,
    (PackedLinear("model.layers.0.mlp.down_proj", "a.onednn", 576, 1536, "bfloat16", "00ff", weight_stays=True),),
    (PlainTensor("model.norm.weight", "model.norm.weight", is_parameter=True),),
    ("model.router",),
)


def test_a_table_comes_back_as_it_was_written() -> None:
    assert parse(encode(TABLE), Path("t")) == TABLE


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b'"rows": 576', b'"rows": 0', "rows"),
        (b'"descriptor": "00ff"', b'"descriptor": "zz"', "descriptor"),
        (b'"version": 1', b'"version": 2', "version 2"),
        (b'"native"', b'"foreign"', "unknown field"),
        (b"}", b"", "malformed|truncated|valid"),
    ],
)
def test_a_table_that_says_something_else_is_refused(old: bytes, new: bytes, why: str) -> None:
    raw = encode(TABLE)
    assert old in raw
    with pytest.raises(ManifestInvalid, match=why):
        parse(raw.replace(old, new, 1), Path("t"))
