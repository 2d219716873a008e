"""Our own readers of the wire: one that refuses every line it does not know, one that splits on blank lines naively.

People write both by hand, and no SDK stands between them and what the gateway sends while the model loads.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from _suite import LIMITS, MESSAGES, PROMPT, Answer, main


def _post(base_url: str, path: str, body: dict[str, Any]) -> tuple[http.client.HTTPResponse, float]:
    """(response, when the request was sent); no timeout, as a first script has none."""
    where = urlsplit(base_url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port)
    sent = time.monotonic()
    connection.request("POST", where.path + path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, (response.status, response.read())
    return response, sent


def _pieces(response: http.client.HTTPResponse) -> Iterator[tuple[float, bytes]]:
    while piece := response.read1(65536):
        yield time.monotonic(), piece


def strict_lines(base_url: str, model: str) -> Answer:
    """Every line is blank, a comment or ``data: ``; every datum but the last is a chunk with exactly one choice.

    A blank line ends a datum, never comments alone: fetch-event-source would deliver an empty message, and go-openai
    gives up after 150 of them.
    """
    body = {"model": model, "messages": MESSAGES, "stream": True, **LIMITS}
    response, last = _post(base_url, "/chat/completions", body)
    assert response.headers["Content-Type"].startswith("text/event-stream"), response.headers["Content-Type"]
    text, roles, comments, noops, gaps = "", [], [], 0, [time.monotonic() - last]
    done = datum = False
    last = time.monotonic()
    buffer = b""
    for now, piece in _pieces(response):
        gaps.append(now - last)
        last = now
        buffer += piece
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            assert not done or not line, f"{line!r} after [DONE]"
            if line.startswith(b":"):
                comments.append(line.decode())
            elif line == b"data: [DONE]":
                done = datum = True
            elif line.startswith(b"data: "):
                chunk, datum = json.loads(line[6:]), True
                assert chunk["object"] == "chat.completion.chunk" and len(chunk["choices"]) == 1, chunk
                delta = chunk["choices"][0]["delta"]
                roles += [delta["role"]] if "role" in delta else []
                noops += not delta.get("content") and chunk["choices"][0].get("finish_reason") is None
                text += delta.get("content") or ""
            else:
                assert line == b"", f"a line of a kind that no OpenAI stream has: {line!r}"
                assert datum, "an event without data"
                datum = False
    assert done and not buffer, f"the stream ended without [DONE]: {buffer!r}"
    assert roles == ["assistant"], f"the role is said once, not {roles}"
    wire = {"comments": comments, "noops": noops, "first_s": gaps[0], "longest_gap_s": max(gaps[1:], default=0.0)}
    return Answer(text, roles[0], details=wire)


def blank_line_splitter(base_url: str, model: str) -> Answer:
    """Keeps what starts with ``data: `` between blank lines, and loses a block that starts with a comment."""
    body = {"model": model, "messages": MESSAGES, "stream": True, **LIMITS}
    response, _ = _post(base_url, "/chat/completions", body)
    text, done = "", False
    for block in response.read().decode().split("\n\n"):
        if block.startswith("data: ") and block != "data: [DONE]":
            text += json.loads(block[6:])["choices"][0]["delta"].get("content") or ""
        done |= block == "data: [DONE]"
    assert done, "no [DONE]"
    return Answer(text)


def text_lines(base_url: str, model: str) -> Answer:
    """The same strictness for the older text completions."""
    body = {"model": model, "prompt": PROMPT, "stream": True, **LIMITS}
    response, _ = _post(base_url, "/completions", body)
    text, lines = "", response.read().decode().split("\n")
    for line in lines:
        assert line == "" or line.startswith((":", "data: ")), line
        if line.startswith("data: {"):
            chunk = json.loads(line[6:])
            assert chunk["object"] == "text_completion" and len(chunk["choices"]) == 1, chunk
            text += chunk["choices"][0]["text"]
    assert "data: [DONE]" in lines
    return Answer(text, prompt=PROMPT)


def plain(base_url: str, model: str) -> Answer:
    """``json.loads`` of the whole body, padding included."""
    response, sent = _post(base_url, "/chat/completions", {"model": model, "messages": MESSAGES, **LIMITS})
    first = time.monotonic() - sent
    body = response.read()
    message = json.loads(body)["choices"][0]["message"]
    padding = len(body) - len(body.lstrip())
    return Answer(message["content"], message["role"], details={"padding": padding, "first_s": first})


if __name__ == "__main__":
    main(
        None,
        {
            "strict_lines": strict_lines,
            "blank_line_splitter": blank_line_splitter,
            "text_lines": text_lines,
            "plain": plain,
        },
    )
