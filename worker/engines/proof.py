"""Warm-up with the shapes that real requests have, and verification by one real greedy answer.

Both talk HTTP through a :data:`Post`, so that they exercise what a client's request will. A model that cannot chat is
asked for a completion, one that cannot complete for an embedding. Nothing here depends on the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from rewarm.messages import ReplicaSpec
from rewarm.states import FailureReason
from rewarm.upstream import UpstreamError, UpstreamPool
from worker.engines.host import HostFailed

Post = Callable[[str, dict[str, Any]], Awaitable[tuple[int, bytes]]]
"""(path, JSON body) → (status, body). Raises UpstreamError when the engine does not answer."""

SHORT_PROMPT = "Hello"
QUESTION = "What is the capital of France? Answer in one word."
_LONG_WORDS = 1024  # enough for the prefill's large shapes; more would only cost time on a CPU
_UNKNOWN_CONTEXT = 1024
_SHORTEST_LONG = 32
_ANSWER_TOKENS = 16
_ANSWER_LIMIT = 8 * 2**20
_SAID_LIMIT = 200  # characters of the engine's answer that go into a message; clients see it
_PATH = re.compile(r"(?<![\w./:])/([\w.-]+)/(?:[\w.@+-]+/)*")
_NOT_THIS_WAY = frozenset((400, 404, 405, 422, 501))  # e.g. no chat template, no such route


_COMING_S = 0.1  # until requests that waited for the gate have come in
_LONG_ENOUGH_S = 5.0  # for their answers, before the engine is asked beside them


class Kind(StrEnum):
    """What the model can do; the value is the path."""

    CHAT = "/v1/chat/completions"
    COMPLETION = "/v1/completions"
    EMBEDDING = "/v1/embeddings"


def poster(pool: UpstreamPool, endpoint: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> Post:
    lines = [(b"Content-Type", b"application/json"), *headers]

    async def post(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        response = await pool.request(endpoint, "POST", path, lines, json.dumps(body).encode())
        return response.status, await response.read(_ANSWER_LIMIT)

    return post


async def first_requests(quiet: asyncio.Event) -> None:
    """Until those that came with the wake are through, or have had long enough. ``quiet``: of the gate."""
    await asyncio.sleep(_COMING_S)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LONG_ENOUGH_S):
            await quiet.wait()


async def warm_up(post: Post, spec: ReplicaSpec, model: str, report: Callable[[float, str], None]) -> Kind:
    """A short prompt, a long one, then as many at once as the replica has slots. ``report(fraction, words)`` after
    each.

    Raise HostFailed (VERIFICATION_FAILED) when the engine refuses even the short one, or fails under its own slots.
    """
    kind = await first_answer(post, model)
    report(0.2, "short prompt answered")
    await _long_prompt(post, kind, model, spec.context_length or _UNKNOWN_CONTEXT)
    report(0.4, "long prompt answered")
    done = 0

    async def one() -> None:
        nonlocal done
        status, body = await _ask(post, kind.value, request_body(kind, model, SHORT_PROMPT, 4))
        if status != 200:
            raise _failed(f"{kind.value} answered {status} with {spec.slots} requests at once", body)
        done += 1
        report(0.4 + 0.6 * done / spec.slots, f"{done} of {spec.slots} slots answered at once")

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(spec.slots):
                group.create_task(one())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return kind


async def verify(post: Post, kind: Kind, model: str, *, strict: bool = False) -> str:
    """One greedy answer; its text. ``strict``: an empty text is a failure too (a server may think first, or not be
    greedy).

    Raise HostFailed (VERIFICATION_FAILED).
    """
    status, body = await _ask(post, kind.value, request_body(kind, model, QUESTION, _ANSWER_TOKENS))
    if status != 200:
        raise _failed(f"the verification request got {status}", body)
    try:
        answer = json.loads(body)
        text = _text(kind, answer)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _failed("the verification answer is not of the OpenAI form", body) from error
    if strict and not text.strip():
        raise _failed("the verification answer is empty", body)
    return text


def request_body(kind: Kind, model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    if kind is Kind.EMBEDDING:
        return {"model": model, "input": prompt}
    body: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "temperature": 0}
    if kind is Kind.CHAT:
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    return body


async def first_answer(post: Post, model: str) -> Kind:
    """What the model can do, by two tokens of it. Raise HostFailed (VERIFICATION_FAILED)."""
    status, body = 0, b""
    for kind in Kind:
        status, body = await _ask(post, kind.value, request_body(kind, model, SHORT_PROMPT, 2))
        if status == 200:
            if _is_object(body):
                return kind
            raise _failed("the engine's first answer is no JSON: is it an OpenAI-compatible server?", body)
        if status not in _NOT_THIS_WAY:
            break
    raise _failed(f"the engine's first answer was status {status}", body)


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


async def _long_prompt(post: Post, kind: Kind, model: str, context: int) -> None:
    words = min(_LONG_WORDS, context // 2)
    while words >= _SHORTEST_LONG:
        prompt = "the quick brown fox jumps over the lazy dog " * (words // 9 + 1)
        status, body = await _ask(post, kind.value, request_body(kind, model, prompt, 2))
        if status == 200:
            return
        if status >= 500:
            raise _failed(f"a prompt of {words} words got {status}", body)
        words //= 2  # its context is shorter than we were told


async def _ask(post: Post, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    try:
        return await post(path, body)
    except UpstreamError as error:
        raise HostFailed(FailureReason.ENGINE_EXITED, f"the engine did not answer {path}: {error}") from error


def _text(kind: Kind, answer: Any) -> str:
    if kind is Kind.EMBEDDING:
        return f"embedding of {len(answer['data'][0]['embedding'])} numbers"
    choice = answer["choices"][0]
    if kind is Kind.COMPLETION:
        return str(choice["text"])
    message = choice["message"]
    return str(message.get("content") or message.get("reasoning_content") or message.get("reasoning") or "")


def _failed(what: str, body: bytes) -> HostFailed:
    said = _one_line(body)
    return HostFailed(FailureReason.VERIFICATION_FAILED, f"{what}: {said}" if said else what)


def _one_line(body: bytes) -> str:
    """The engine's words without line breaks, control characters and folders of this machine."""
    text = body[: 8 * _SAID_LIMIT].decode("utf-8", "replace")
    text = "".join(c if c.isprintable() else " " for c in text)
    text = _PATH.sub(lambda path: "…/" if Path("/", path[1]).is_dir() else path[0], " ".join(text.split()))
    return text if len(text) <= _SAID_LIMIT else text[: _SAID_LIMIT - 1] + "…"
