"""A small real OpenAI-compatible server whose misbehaviour is set by arguments: the tests' stand-in for an engine.

    python tests/programs/fake_engine.py --port 9000 --start-delay 2 --token-delay 0.02

It answers ``/health``, ``/v1/models``, ``/v1/chat/completions`` and ``/v1/completions`` (streaming and not) with
greedy text that echoes the last user message, and says "Paris" when asked about France. ``GET /stats`` tells what
it saw: the peak of requests at once, how many started, completed and were aborted, and in which order tenants started.
``GET /last`` gives the headers and the body of the latest request, to check that everything passes through untouched.

A request's body may override the per-answer knobs for itself: ``{"fake": {"token_delay": 0.5, "stall_after": 3}}``.
A tenant is the body's ``user``, else the header ``X-Tenant``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import uvloop
from aiohttp import web

CREATED = 1_700_000_000
_TOKEN = re.compile(r"\S+\s*|\s+")
# Knobs that a request's own "fake" object may override.
_PER_ANSWER = (
    "token_delay",
    "first_token_delay",
    "tokens",
    "die_after_tokens",
    "truncate_after",
    "cut_after",
    "stall_after",
    "grow_after",
    "fail_status",
)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--model", action="append", help="name to serve, repeatable; without it any name is served")
    p.add_argument("--log", help="append JSON lines about each request: start, end, abort")
    start = p.add_argument_group("start")
    start.add_argument("--start-delay", type=float, default=0.0, metavar="S", help="before the port opens")
    start.add_argument("--read-file", metavar="PATH", help="read this file before the port opens")
    start.add_argument("--read-mbps", type=float, default=50.0, help="how fast, in MB/s")
    start.add_argument("--allocate-mb", type=int, default=0, help="hold this much resident memory")
    start.add_argument("--exit-at-start", type=int, metavar="CODE", help="exit after the start delay")
    start.add_argument("--hang-at-start", action="store_true", help="never open the port")
    start.add_argument("--open-but-never-ready", action="store_true", help="open the port, answer 503 to everything")
    start.add_argument("--fork-child", action="store_true", help="leave a child in a session of its own, sleeping")
    start.add_argument("--ignore-sigterm", action="store_true")
    answer = p.add_argument_group("answer")
    answer.add_argument("--token-delay", type=float, default=0.0, metavar="S")
    answer.add_argument("--first-token-delay", type=float, default=0.0, metavar="S", help="before anything is sent")
    answer.add_argument("--tokens", type=int, default=0, metavar="N", help="pad answers to this length")
    answer.add_argument("--die-after-tokens", type=int, metavar="N", help="SIGKILL itself in mid-answer")
    answer.add_argument("--truncate-after", type=int, metavar="N", help="end the stream cleanly, but without [DONE]")
    answer.add_argument("--cut-after", type=int, metavar="N", help="drop the connection in mid-answer")
    answer.add_argument("--stall-after", type=int, metavar="N", help="send nothing more, keep the connection")
    answer.add_argument("--grow-after", type=int, metavar="N", help="take memory without end in mid-answer")
    answer.add_argument("--fail-status", type=int, metavar="STATUS", help="answer every completion with this error")
    answer.add_argument("--exit-after-s", type=float, metavar="S", help="exit with status 7 so long after the start")
    return p.parse_args(argv)


class Engine:
    """What the server knows of itself: its knobs and the record of what it served."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.log = open(args.log, "a", buffering=1) if args.log else None  # noqa: SIM115  # open as long as we live
        self.last: dict[str, Any] = {}
        self.reset()

    def reset(self) -> None:
        self.running = self.peak = self.started = self.completed = self.aborted = 0
        self.order: list[str] = []

    def stats(self) -> dict[str, Any]:
        fields = ("running", "peak", "started", "completed", "aborted", "order")
        return {"pid": os.getpid(), **{name: getattr(self, name) for name in fields}}

    @contextlib.contextmanager
    def request(self, tenant: str, request_id: str) -> Any:
        """Count one running request; a disconnect of the client arrives as a cancellation or a failed write."""
        self.running += 1
        self.started += 1
        self.peak = max(self.peak, self.running)
        self.order.append(tenant)
        self._write("start", tenant, request_id)
        try:
            yield
        except BaseException:
            self.running -= 1
            self.aborted += 1
            self._write("abort", tenant, request_id)
            raise
        self.running -= 1
        self.completed += 1
        self._write("end", tenant, request_id)

    def _write(self, event: str, tenant: str, request_id: str) -> None:
        if self.log is not None:
            line = {"t": time.time(), "event": event, "tenant": tenant, "id": request_id, "running": self.running}
            self.log.write(json.dumps(line) + "\n")


def prompt_of(body: dict[str, Any]) -> str:
    """The last user message (or the prompt) as plain text; parts that are no text are named by their type."""
    messages = body.get("messages", body.get("input"))
    if not isinstance(messages, list):
        prompt = body.get("prompt", "") if messages is None else messages
        return prompt if isinstance(prompt, str) else json.dumps(prompt)
    users = [m for m in messages if m.get("role") == "user"]
    content = users[-1].get("content", "") if users else ""
    if isinstance(content, list):
        content = " ".join(part.get("text", f"[{part.get('type')}]") for part in content)
    return str(content)


def answer_tokens(body: dict[str, Any], pad_to: int) -> tuple[list[str], str]:
    """(tokens, finish reason). Whitespace stays with the word before it, so that joining gives the text."""
    prompt = prompt_of(body)
    text = f"The capital of France is Paris. You said: {prompt}" if "France" in prompt else f"You said: {prompt}"
    tokens = _TOKEN.findall(text)
    if len(tokens) < pad_to:
        tokens[-1] += " "
        tokens += [f"word{i} " for i in range(len(tokens), pad_to)]
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or body.get("max_output_tokens")
    if limit and len(tokens) > limit:
        return tokens[:limit], "length"
    return tokens, "stop"


def usage_of(body: dict[str, Any], tokens: list[str]) -> dict[str, int]:
    prompt = len(_TOKEN.findall(prompt_of(body)))
    return {"prompt_tokens": prompt, "completion_tokens": len(tokens), "total_tokens": prompt + len(tokens)}


def error(status: int, message: str, code: str) -> web.Response:
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
    return web.json_response(body, status=status)


async def completions(request: web.Request) -> web.StreamResponse:
    engine: Engine = request.app[ENGINE]
    raw = await request.read()
    engine.last = {"headers": dict(request.headers), "path": request.path_qs, "body": raw.decode("utf-8", "replace")}
    try:
        body = json.loads(raw)
        needed = ("input",) if request.path == "/v1/responses" else ("messages", "prompt")
        assert isinstance(body, dict) and any(name in body for name in needed)
    except (ValueError, AssertionError):
        return error(400, "the body must be a JSON object with messages, prompt or input", "bad_request")
    if body.get("background"):  # vLLM's own words start like this: it keeps no responses
        return error(400, "This engine does not support the background mode.", "bad_request")
    if engine.args.model and body.get("model") not in engine.args.model:
        return error(404, f"The model `{body.get('model')}` does not exist.", "model_not_found")
    knobs = argparse.Namespace(**{name: getattr(engine.args, name) for name in _PER_ANSWER})
    vars(knobs).update({k: v for k, v in (body.get("fake") or {}).items() if k in _PER_ANSWER})
    tenant = str(body.get("user") or request.headers.get("X-Tenant", ""))
    with engine.request(tenant, request.headers.get("X-Request-Id", "")):
        if knobs.fail_status:
            return error(knobs.fail_status, "told to fail", "fake_failure")
        tokens, finish = answer_tokens(body, knobs.tokens)
        paced = _pace(request, tokens, knobs)
        if request.path == "/v1/responses":
            return await _responses(request, body, paced, tokens, finish, knobs)
        if body.get("stream"):
            return await _stream(request, body, paced, tokens, finish, knobs)
        text = "".join([token async for token in paced])
        return web.json_response(_whole(body, text, finish, usage_of(body, tokens)))


async def _pace(request: web.Request, tokens: list[str], knobs: argparse.Namespace) -> AsyncIterator[str]:
    """The tokens with their delays, and the accident that the knobs ask for (at the latest after the last token)."""

    def due(accident: int | None, index: int) -> bool:
        return accident is not None and index == min(accident, len(tokens))

    if knobs.first_token_delay:
        await asyncio.sleep(knobs.first_token_delay)
    for index in range(len(tokens) + 1):
        if due(knobs.die_after_tokens, index):
            await _flushed(request)
            os.kill(os.getpid(), signal.SIGKILL)
        if due(knobs.cut_after, index):
            await _flushed(request)
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("told to cut the connection")
        if due(knobs.stall_after, index):
            await asyncio.Event().wait()
        if due(knobs.grow_after, index):
            await _flushed(request)
            hoard(2**20)
        if due(knobs.truncate_after, index) or index == len(tokens):
            return
        yield tokens[index]
        if knobs.token_delay:
            await asyncio.sleep(knobs.token_delay)


async def _flushed(request: web.Request) -> None:
    """Until what was written has left the process: an accident must not take it along."""
    transport = request.transport
    while transport and not transport.is_closing() and transport.get_write_buffer_size():  # noqa: ASYNC110  # no event
        await asyncio.sleep(0)


async def _stream(
    request: web.Request,
    body: dict[str, Any],
    paced: AsyncIterator[str],
    tokens: list[str],
    finish: str,
    knobs: argparse.Namespace,
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    chat = "messages" in body
    head = {"id": _id(chat), "object": "chat.completion.chunk" if chat else "text_completion", "created": CREATED}
    head["model"] = str(body.get("model"))

    async def event(choices: list[dict[str, Any]], **more: Any) -> None:
        await response.write(b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n")

    def choice(text: str, reason: str | None = None, **delta: str) -> list[dict[str, Any]]:
        common = {"index": 0, "logprobs": None, "finish_reason": reason}
        return [{**common, "delta": {**delta, "content": text}} if chat else {**common, "text": text}]

    if chat:
        await event(choice("", role="assistant"))
    async for token in paced:
        await event(choice(token))
    if knobs.truncate_after is not None:
        await response.write_eof()
        return response
    await event([{"index": 0, "delta": {}, "logprobs": None, "finish_reason": finish}] if chat else choice("", finish))
    if (body.get("stream_options") or {}).get("include_usage"):
        await event([], usage=usage_of(body, tokens))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _response_of(
    body: dict[str, Any], output: list[dict[str, Any]], finish: str | None, usage: dict[str, int] | None
) -> dict[str, Any]:
    """A Response as vLLM 0.32 writes it. ``finish`` is None while it runs."""
    cut = finish == "length"
    told = None
    if usage is not None:
        told = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }
    return {
        "id": "resp_fake",
        "created_at": CREATED,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata"),
        "model": body.get("model"),
        "object": "response",
        "output": output,
        "parallel_tool_calls": True,
        "temperature": body.get("temperature", 1.0),
        "tool_choice": "none",
        "tools": [],
        "top_p": 1.0,
        "background": False,
        "max_output_tokens": body.get("max_output_tokens"),
        "previous_response_id": None,
        "status": "in_progress" if finish is None else "incomplete" if cut else "completed",
        "text": None,
        "truncation": "disabled",
        "usage": told,
        "user": body.get("user"),
    }


async def _responses(
    request: web.Request,
    body: dict[str, Any],
    paced: AsyncIterator[str],
    tokens: list[str],
    finish: str,
    knobs: argparse.Namespace,
) -> web.StreamResponse:
    """The events of vLLM 0.32, in its order and with its quirks: the end is ``response.completed`` even where the
    response's own status is ``incomplete``, and no ``[DONE]`` follows."""
    item_id = f"msg_fake{request.app[ENGINE].started:04d}"

    def part(text: str) -> dict[str, Any]:
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}

    def item(status: str, *parts: dict[str, Any]) -> dict[str, Any]:
        return {"id": item_id, "content": parts, "role": "assistant", "status": status, "type": "message"}

    if not body.get("stream"):
        text = "".join([token async for token in paced])
        return web.json_response(_response_of(body, [item("completed", part(text))], finish, usage_of(body, tokens)))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    number = 0

    async def event(kind: str, **fields: Any) -> None:
        nonlocal number
        data = json.dumps({**fields, "sequence_number": number, "type": kind})
        number += 1
        await response.write(f"event: {kind}\ndata: {data}\n\n".encode())

    place = {"content_index": 0, "item_id": item_id, "output_index": 0}
    begun = _response_of(body, [], None, None)
    await event("response.created", response=begun)
    await event("response.in_progress", response=begun)
    await event("response.output_item.added", item=item("in_progress"), output_index=0)
    await event("response.content_part.added", **place, part=part(""))
    text = ""
    async for token in paced:
        text += token
        await event("response.output_text.delta", **place, delta=token, logprobs=[])
    if knobs.truncate_after is None:
        await event("response.output_text.done", **place, text=text, logprobs=[])
        await event("response.content_part.done", **place, part=part(text))
        done = item("completed", part(text))
        await event("response.output_item.done", item=done, output_index=0)
        await event("response.completed", response=_response_of(body, [done], finish, usage_of(body, tokens)))
    await response.write_eof()
    return response


def _id(chat: bool) -> str:
    return "chatcmpl-fake" if chat else "cmpl-fake"


def _whole(body: dict[str, Any], text: str, finish: str, usage: dict[str, int]) -> dict[str, Any]:
    chat = "messages" in body
    answer = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {
        "id": _id(chat),
        "object": "chat.completion" if chat else "text_completion",
        "created": CREATED,
        "model": body.get("model"),
        "choices": [{"index": 0, **answer, "logprobs": None, "finish_reason": finish}],
        "usage": usage,
    }


async def health(request: web.Request) -> web.Response:
    return web.Response()


async def models(request: web.Request) -> web.Response:
    names = request.app[ENGINE].args.model or ["fake"]
    data = [{"id": name, "object": "model", "created": CREATED, "owned_by": "fake"} for name in names]
    return web.json_response({"object": "list", "data": data})


async def stats(request: web.Request) -> web.Response:
    return web.json_response(request.app[ENGINE].stats())


async def reset(request: web.Request) -> web.Response:
    request.app[ENGINE].reset()
    return web.Response()


async def last(request: web.Request) -> web.Response:
    return web.json_response(request.app[ENGINE].last)


async def never_ready(request: web.Request) -> web.Response:
    return error(503, "not ready, and never will be", "never_ready")


ENGINE = web.AppKey("engine", Engine)


def create_app(args: argparse.Namespace) -> web.Application:
    app = web.Application(client_max_size=64 * 2**20)
    app[ENGINE] = Engine(args)
    if args.open_but_never_ready:
        app.router.add_route("*", "/{path:.*}", never_ready)
        return app
    app.router.add_get("/health", health)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", completions)
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/v1/responses", completions)
    app.router.add_get("/stats", stats)
    app.router.add_post("/stats/reset", reset)
    app.router.add_get("/last", last)
    return app


def hoard(mb: int) -> list[bytearray]:
    """Take that much resident memory, bit by bit: a page never written to is not resident."""
    held = []
    for _ in range(mb):
        held.append(piece := bytearray(2**20))
        piece[::4096] = b"x" * 256
    return held


def before_serving(args: argparse.Namespace) -> list[bytearray]:
    """Everything a start may do or suffer before the port opens. Returns the memory to hold on to."""
    if args.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if args.fork_child and os.fork() == 0:
        os.setsid()
        while True:
            signal.pause()
    held = hoard(args.allocate_mb)
    if args.read_file:
        with open(args.read_file, "rb", buffering=0) as file:
            piece = max(1, int(args.read_mbps * 1e6 / 20))
            while file.read(piece):
                time.sleep(0.05)
    time.sleep(args.start_delay)
    if args.exit_at_start is not None:
        print("fake engine: told to exit at its start", file=sys.stderr, flush=True)
        sys.exit(args.exit_at_start)
    while args.hang_at_start:
        signal.pause()
    return held


async def serve(args: argparse.Namespace) -> None:
    runner = web.AppRunner(create_app(args), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, args.host, args.port).start()
    print(f"fake engine: listening on {args.host}:{args.port}", flush=True)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    if not args.ignore_sigterm:
        loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    if args.exit_after_s is not None:
        loop.call_later(args.exit_after_s, os._exit, 7)
    await stop.wait()
    await runner.cleanup()


if __name__ == "__main__":
    _args = arguments()
    _held = before_serving(_args)
    uvloop.run(serve(_args))
