"""``rewarm init``: what is on a machine, as a configuration that can be served at once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rewarm.cli.init.find import find_models
from rewarm.cli.init.write import Place, Programs, write
from rewarm.config import Config, parse
from rewarm.hub import HubReference
from snapshots import HubCache
from tests.cli.commands import rewarm

GIB = 2**30
RAM = [Place("RAM", 10 * GIB, 8 * GIB)]
ALL = Programs(vllm=True, torch=True, llama_server="/usr/bin/llama-server")
COMMIT = "a" * 40


def sparse(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, size)
    return path


def checkpoint(folder: Path, architecture: str, size: int = GIB) -> Path:
    sparse(folder / "model.safetensors", size)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with something of every kind."""
    root = tmp_path / "home"
    hub = HubCache(root / ".cache" / "huggingface" / "hub")
    checkpoint(hub.snapshot("Qwen/Qwen3-1B", COMMIT), "Qwen3ForCausalLM")
    hub.name(HubReference("Qwen/Qwen3-1B"), COMMIT)
    checkpoint(hub.snapshot("org/encoder", COMMIT), "BertModel")
    hub.name(HubReference("org/encoder"), COMMIT)
    sparse(hub.snapshot("org/half", COMMIT) / "config.json", 2)  # a download that was broken off
    hub.name(HubReference("org/half"), COMMIT)
    for name in ("a-Q4.gguf", "a-Q8.gguf"):
        sparse(hub.snapshot("org/quants", COMMIT) / name, GIB)
    hub.name(HubReference("org/quants"), COMMIT)
    sparse(root / "models" / "tiny q4.gguf", GIB)
    sparse(root / "models" / "mmproj-tiny.gguf", GIB)
    for part in (1, 2):
        sparse(root / ".lmstudio" / "models" / "pub" / "big" / f"big-0000{part}-of-00002.gguf", 10 * GIB)
    store = root / ".ollama" / "models"
    sparse(store / "blobs" / "sha256-abc", GIB)
    manifest = store / "manifests" / "registry.ollama.ai" / "library" / "gemma" / "2b"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:abc"}
    manifest.write_text(json.dumps({"layers": [{"mediaType": "other", "digest": "sha256:x"}, layer]}))
    return root


def written(home: Path, programs: Programs = ALL, *folders: Path) -> tuple[str, Config]:
    text = write(find_models(folders, {}, home), RAM, programs)
    return text, parse(text)


def test_everything_that_can_be_served_is(home: Path) -> None:
    text, config = written(home)
    engines = {
        name: (getattr(model, "engine", ""), str(getattr(model, "source", ""))) for name, model in config.models.items()
    }
    assert engines == {
        "qwen3-1b": ("vllm", "hf:Qwen/Qwen3-1B"),
        "encoder": ("torch", "hf:org/encoder"),
        "a-q4": ("command", "hf:org/quants/a-Q4.gguf"),
        "a-q8": ("command", "hf:org/quants/a-Q8.gguf"),
        "tiny-q4": ("command", str(home / "models" / "tiny q4.gguf")),
        "gemma:2b": ("command", str(home / ".ollama" / "models" / "blobs" / "sha256-abc")),
    }
    assert "# 1.0 GiB of weights in" in text
    assert "RAM: 10.0 GiB, of which 8.0 GiB for models" in text


def test_what_cannot_fit_stands_there_as_a_comment(home: Path) -> None:
    text, config = written(home)
    assert "big" not in config.models
    assert "# needs about 26.0 GiB, and the largest budget here is 8.0 GiB" in " ".join(
        text.replace("\n#   #", " #").split()
    )
    uncommented = "\n".join(line.removeprefix("# ") for line in text.partition("\n# Not served")[2].splitlines()[1:])
    assert "big" in parse(f"models:\n{uncommented}").models, "taking the # away is all that it needs"


@pytest.mark.parametrize(
    ("programs", "served", "why"),
    [
        (Programs(), set(), "no engine is installed"),
        (Programs(torch=True), {"qwen3-1b", "encoder"}, "llama-server is not on the PATH"),
        (
            Programs(llama_server="/x/llama-server"),
            {"tiny-q4", "gemma:2b", "a-q4", "a-q8"},
            "pip install 'rewarm[torch]'",
        ),
    ],
)
def test_an_engine_that_is_missing_is_named(home: Path, programs: Programs, served: set[str], why: str) -> None:
    text, config = written(home, programs)
    assert config.models.keys() == served
    assert why in text


def test_only_the_folders_that_are_given_are_looked_through(home: Path, tmp_path: Path) -> None:
    mine = checkpoint(tmp_path / "mine" / "Model A", "LlamaForCausalLM").parent
    _, config = written(home, ALL, mine)
    assert "model-a" in config.models
    assert "tiny-q4" not in config.models


def test_a_name_is_given_once_and_a_file_too(tmp_path: Path) -> None:
    one = sparse(tmp_path / "a" / "m.gguf", GIB)
    sparse(tmp_path / "b" / "m.gguf", GIB)
    (tmp_path / "b" / "link.gguf").symlink_to(one)
    _, config = written(tmp_path / "nobody", ALL, tmp_path / "a", tmp_path / "b")
    assert sorted(config.models) == ["m", "m-2"]


def test_nothing_found_is_a_file_that_says_what_to_do(tmp_path: Path) -> None:
    text, config = written(tmp_path)
    assert config.models == {}
    assert "source: hf:org/name" in text


@pytest.mark.asyncio
async def test_the_command_replaces_nothing_and_says_what_comes_next(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "c.yaml"
    env = {"HOME": str(home), "HF_HOME": "", "HF_HUB_CACHE": ""}
    done = await rewarm("init", "-o", str(target), env=env)
    assert done.code == 0, done.err
    assert f"Next: rewarm serve {target}" in done.out
    first = target.read_text()
    assert (await rewarm("check", str(target), env=env)).code == 0
    done = await rewarm("init", "-o", str(target), env=env)
    assert (done.code, "output_exists" in done.err, target.read_text()) == (2, True, first)
    assert (await rewarm("init", "-o", str(target), "--force", env=env)).code == 0

    empty = await rewarm("init", "-o", "-", str(tmp_path / "home" / ".ollama"), env={**env, "HOME": str(tmp_path)})
    assert empty.code == 0
    assert parse(empty.out).models == {}
