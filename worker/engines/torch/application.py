"""The ASGI application behind the gate: three paths, OpenAI's bodies in and out, errors in OpenAI's form.

A client that leaves cancels its request; the request's slot is free once the runner has let go of its rows.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from rewarm.errors import BodyTooLarge, InvalidRequest, ModelNotFound, NotFound, NotSupported, RewarmError
from worker.engines.torch import answers
from worker.engines.torch.asked import Asked, of_chat, of_completion
from worker.engines.torch.model import Skeleton
from worker.engines.torch.prompts import Prompts
from worker.engines.torch.request import MOST_INPUTS, ChatBody, CompletionBody, EmbeddingBody, decode, prompts
from worker.engines.torch.rows import Embedding, Events, Failed, Generation, Row, Said
from worker.engines.torch.runner import Runner, Work
from worker.gate.asgi import Receive, Scope, Send

_BODY_LIMIT = 64 * 2**20
_log = logging.getLogger("rewarm.worker.torch")

Handler = Callable[[bytes, "_Reply"], Awaitable[None]]


class StreamCut(Exception):
    """The engine failed in the middle of a stream: the connection ends without ``[DONE]``, which gateways understand.
    An end that looks complete would be wrong."""


class Application:
    """``names``: those under which the model is served. Bodies name one of them."""

    def __init__(self, model: Skeleton, runner: Runner, names: Sequence[str]) -> None:
        self._model = model
        self._runner = runner
        self._names = frozenset(names)
        self._prompts = Prompts(model)
        self._handlers: dict[str, Handler] = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completion,
            "/v1/embeddings": self._embed,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = _Reply(receive, send)
        try:
            handler = self._handlers.get(scope["path"])
            if handler is None or scope["method"] != "POST":
                raise NotFound(f"the torch engine does not serve {scope['method']} {scope['path']}")
            body = await reply.body()
            if body is not None:
                await handler(body, reply)
        except RewarmError as error:
            if reply.began:
                raise StreamCut(error.message) from error
            await reply.error(error)

    # -- the three paths

    async def _chat(self, raw: bytes, reply: _Reply) -> None:
        self._needs(generates=True)
        body = decode(raw, ChatBody)
        self._named(body.model)
        asked = await of_chat(body, self._prompts, self._model)
        await self._generate(asked, answers.Answer(chat=True, model=body.model), reply)

    async def _completion(self, raw: bytes, reply: _Reply) -> None:
        self._needs(generates=True)
        body = decode(raw, CompletionBody)
        self._named(body.model)
        asked = await of_completion(body, self._prompts, self._model)
        await self._generate(asked, answers.Answer(chat=False, model=body.model), reply)

    async def _embed(self, raw: bytes, reply: _Reply) -> None:
        self._needs(generates=False)
        body = decode(raw, EmbeddingBody)
        self._named(body.model)
        if body.encoding_format not in ("float", "base64"):
            raise InvalidRequest("`encoding_format` is float or base64", param="encoding_format")
        width = self._model.config.hidden_size
        if body.dimensions not in (None, width):
            raise NotSupported(f"the model's vectors have {width} dimensions, not fewer", param="dimensions")
        inputs = await self._prompts.of_texts(prompts(body.input, "input", MOST_INPUTS))
        work = Embedding(inputs, asyncio.get_running_loop().create_future())
        async with self._working(work, reply):
            vectors = await work.result
        if reply.gone:
            return
        as_base64, count = body.encoding_format == "base64", sum(map(len, inputs))
        await reply.json(answers.embeddings(body.model, vectors, as_base64=as_base64, prompt=count))

    def _needs(self, *, generates: bool) -> None:
        if generates != self._model.generates:
            can = "writes text, it does not embed" if self._model.generates else "embeds, it does not write text"
            raise NotSupported(f"the model {can}", param="model")

    def _named(self, name: str) -> None:
        if name not in self._names:
            raise ModelNotFound(f"this engine does not serve {name!r}", param="model")

    # -- text

    async def _generate(self, asked: Asked, answer: answers.Answer, reply: _Reply) -> None:
        events: Events = asyncio.Queue()
        rows = list(self._rows(asked, events))
        generation = Generation(rows)
        async with self._working(generation, reply):
            if asked.stream:
                await self._stream(asked, answer, rows, events, reply)
            else:
                await self._whole(asked, answer, rows, events, reply)

    def _rows(self, asked: Asked, events: Events) -> Iterator[Row]:
        tokenizer = self._model.tokenizer
        for index, (prompt, most) in enumerate(asked.prompts):
            yield Row(
                index,
                prompt,
                most,
                asked.sampling,
                stops=asked.stops,
                ends=frozenset() if asked.ignore_eos else self._model.ends,
                decode=lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=True)),
                events=events,
            )

    async def _whole(
        self, asked: Asked, answer: answers.Answer, rows: Sequence[Row], events: Events, reply: _Reply
    ) -> None:
        texts = ["" for _ in rows]
        finishes = ["" for _ in rows]
        async for said in _until_all_said(len(rows), events):
            texts[said.index] += said.text
            finishes[said.index] = said.finish or ""
        if "cancelled" in finishes:
            return
        ids = [row.said if asked.return_token_ids else None for row in rows]
        used = answers.usage(asked.prompt_tokens, sum(len(row.said) for row in rows))
        await reply.json(answer.whole(list(zip(texts, finishes, ids, strict=True)), used))

    async def _stream(
        self, asked: Asked, answer: answers.Answer, rows: Sequence[Row], events: Events, reply: _Reply
    ) -> None:
        with_usage = asked.include_usage
        counts = [0 for _ in rows]
        begun: set[int] = set()
        async for said in _until_all_said(len(rows), events):
            if said.finish == "cancelled":
                continue
            counts[said.index] = said.tokens
            data = b""
            if said.index not in begun:
                begun.add(said.index)
                data = answer.opening(said.index, with_usage=with_usage)
            await reply.stream(data + answer.more(said.index, said.text, said.finish, with_usage=with_usage))
        if not reply.gone:
            used = answers.usage(asked.prompt_tokens, sum(counts)) if with_usage else None
            await reply.stream(answer.closing(used), last=True)

    @asynccontextmanager
    async def _working(self, work: Work, reply: _Reply) -> AsyncIterator[None]:
        """Submitted, and cancelled when the client leaves or this is."""
        gone = asyncio.create_task(reply.until_gone(work.cancel), name="until-gone")
        self._runner.submit(work)
        try:
            yield
        finally:
            work.cancel()  # where it is over, nobody looks at it any more
            gone.cancel()
            with suppress(asyncio.CancelledError):
                await gone


async def _until_all_said(rows: int, events: Events) -> AsyncIterator[Said]:
    """Until each row's last. Raise what the engine failed with."""
    left = rows
    while left:
        event = await events.get()
        if isinstance(event, Failed):
            raise event.error
        left -= event.finish is not None
        yield event


class _Reply:
    """One request's two directions."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.began = False
        self.gone = False

    async def body(self) -> bytes | None:
        """None when the client left before it was whole. Raise BodyTooLarge."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > _BODY_LIMIT:
                raise BodyTooLarge(f"the body is longer than {_BODY_LIMIT} bytes")
            if not message.get("more_body", False):
                return b"".join(parts)

    async def until_gone(self, then: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        then()

    async def json(self, data: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> None:
        raw = json.dumps(data, ensure_ascii=False).encode()
        lines = {"content-type": "application/json", "content-length": str(len(raw)), **(headers or {})}
        await self._start(status, lines)
        await self._send({"type": "http.response.body", "body": raw})

    async def error(self, error: RewarmError) -> None:
        await self.json(error.body(), error.status, {name.lower(): value for name, value in error.headers().items()})

    async def stream(self, data: bytes, *, last: bool = False) -> None:
        if not self.began:
            await self._start(200, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"})
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        self.began = True
        lines = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": lines})
