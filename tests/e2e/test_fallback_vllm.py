"""A checkpoint that vLLM cannot load: the same model, whole, on the torch engine answers instead."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.real import NO_POOL, torch_model, vllm
from tests.e2e.stack import Stack, chat, post, stream, text_of

TENSOR = b'"model.layers.3.mlp.up_proj.weight"'

pytestmark = [pytest.mark.vllm, pytest.mark.redis, pytest.mark.timeout(300)]


def damaged(source: Path, folder: Path) -> Path:
    """The checkpoint, with one of its tensors gone by another name: what is left is no model."""
    shutil.copytree(source, folder)
    with (folder / "model.safetensors").open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = file.read(size)
        assert header.count(TENSOR) == 1
        file.seek(8)
        file.write(header.replace(TENSOR, TENSOR.replace(b"up_proj", b"no_proj")))
    return folder


@pytest.mark.asyncio
async def test_a_damaged_model_on_vllm_is_answered_for_by_torch(tmp_path: Path, smollm2: Path) -> None:
    models = {
        "big": vllm(damaged(smollm2, tmp_path / "damaged"), load_attempts=1, fallback=["small"]),
        "small": torch_model(smollm2, context_length=512, dtype="float32"),
    }
    async with Stack(tmp_path / "stack", models, pool=NO_POOL) as stack:
        serve = await stack.start_serve()
        seen = [event async for event in stream(serve.url, chat("big", temperature=0, max_tokens=24))]
        assert ": fallback from=big to=small reason=model_load_failed" in [event.line for event in seen]
        assert "Paris" in "".join(event.content for event in seen)
        assert {event.data["model"] for event in seen if event.content} == {"small"}
        status, body, headers = await post(serve.url, chat("big", temperature=0, max_tokens=24))
        assert (status, body["model"]) == (200, "small") and "Paris" in text_of(body)
        assert headers["x-rewarm-fallback"] == "big; reason=model_load_failed"
        failure = (await stack.status(serve))["models"]["big"]["failure"]
        assert failure["reason"] in ("weights_corrupt", "start_refused", "engine_exited"), failure
