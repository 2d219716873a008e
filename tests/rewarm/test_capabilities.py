"""What a model can answer, from its engine and its checkpoint's files, or as the configuration says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rewarm.config import catalogue, parse

TEMPLATE = {"chat_template": "{% if tools %}{{ tools }}{% endif %}"}


def checkpoint(folder: Path, config: dict[str, Any], tokenizer: dict[str, Any] | None = None) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer or {}))
    return folder


def capabilities(folder: Path, **fields: Any) -> tuple[set[str] | None, int | None]:
    told = json.dumps({"engine": "vllm", "source": str(folder), **fields})
    found = catalogue(parse(f"models: {{m: {told}}}"))["m"].capabilities
    return None if found.can is None else set(found.can), found.context_length


LLAMA = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("config", "fields", "can"),
    [
        (LLAMA, {}, {"chat", "completions", "responses", "response_format"}),
        (
            LLAMA,
            {"args": ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]},
            {"chat", "completions", "responses", "response_format", "tools"},
        ),
        (
            {**LLAMA, "vision_config": {}},
            {},
            {"chat", "completions", "responses", "response_format", "images"},
        ),
        (LLAMA, {"engine": "torch"}, {"chat", "completions"}),
        ({"architectures": ["BertModel"]}, {"engine": "torch"}, {"embeddings"}),
        (LLAMA, {"capabilities": ["chat", "images"]}, {"chat", "images"}),
    ],
)
def test_a_checkpoint_tells(tmp_path: Path, config: dict[str, Any], fields: dict[str, Any], can: set[str]) -> None:
    assert capabilities(checkpoint(tmp_path / "m", config, TEMPLATE), **fields)[0] == can


def test_the_context_is_the_checkpoints_unless_set(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m", {"text_config": {"max_position_embeddings": 2048}})
    assert capabilities(folder)[1] == 2048
    assert capabilities(folder, context_length=512)[1] == 512


def test_of_what_is_not_here_nothing_is_known(tmp_path: Path) -> None:
    assert capabilities(tmp_path / "elsewhere") == (None, None)
