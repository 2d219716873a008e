"""A real llama.cpp server behind the engine `command`, from a file of llama-swap's: woken by a request, streamed from,
ended with nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rewarm.imports import from_llama_swap
from snapshots import smollm2_gguf
from tests.e2e.stack import ROOT, Stack, chat, post, stream, text_of, until

SERVER = ROOT / ".venv-llamacpp" / "bin" / "llama-server"

LLAMA_SWAP = """
healthCheckTimeout: 120
macros:
  llama: >
    ${env.SERVER}
    --port ${PORT} --ctx-size ${context}
  context: 256
models:
  smollm2:
    cmd: |
      # a small model, for trying out
      ${llama}
      -m ${env.GGUF}
      -a ${MODEL_ID} --parallel 1
    ttl: 2
"""

pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(300)]


@pytest.mark.asyncio
async def test_a_gguf_model_wakes_answers_and_goes_back_to_zero(tmp_path: Path) -> None:
    assert SERVER.exists(), "run tests/llamacpp/setup.sh"
    gguf = smollm2_gguf()
    imported = from_llama_swap(LLAMA_SWAP, "config.yaml", environment={"SERVER": str(SERVER), "GGUF": str(gguf)})
    assert not imported.partial, imported.remarks
    models = yaml.safe_load(imported.text)["models"]
    assert models["smollm2"]["source"] == str(gguf), "so that bytes can be counted"
    async with Stack(tmp_path / "fleet", models) as stack:
        serve = await stack.start_serve()
        question = chat("smollm2", temperature=0, max_tokens=24)

        lines = [event async for event in stream(serve.url, question)]
        assert "Paris" in "".join(event.content for event in lines)
        total = gguf.stat().st_size
        assert any(f" bytes={total}/{total} " in event.line for event in lines), "bytes are counted while it loads"

        status, body, _ = await post(serve.url, question)
        assert (status, body["model"]) == (200, "smollm2")
        assert "Paris" in text_of(body)

        await until(lambda: stack.engines() == [], "it goes back to zero", 30)
        assert await serve.terminate() == 0
        assert stack.leftovers() == []
