"""One streamed chat request, read off its socket as it comes."""

from __future__ import annotations

import json
import re
import socket
import time
from dataclasses import dataclass, field
from itertools import pairwise

QUESTION = {"role": "user", "content": "Hi"}
BODY = {"messages": [QUESTION], "stream": True, "temperature": 0, "max_tokens": 6}
_FRACTION = re.compile(rb"(\d+(?:\.\d+)?) ?%")


@dataclass
class Stream:
    """One streamed answer, in seconds after its request."""

    first_sign_s: float = 0.0
    first_token_s: float = 0.0
    done_s: float = 0.0
    longest_gap_s: float = 0.0
    fractions: list[float] = field(default_factory=list)
    text: str = ""


def ask(port: int, model: str) -> Stream:
    """Send the request and read it to its end. Raise ConnectionError where nothing whole comes."""
    body = json.dumps(BODY | {"model": model}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    out = Stream()
    arrivals: list[float] = []
    lines = b""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        start = time.perf_counter()
        connection.sendall(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        while piece := connection.recv(65536):
            now = time.perf_counter() - start
            arrivals.append(now)
            *whole, lines = (lines + piece).split(b"\n")
            for line in whole:
                _read(out, line.rstrip(b"\r"), now)
    if not out.done_s:
        raise ConnectionError(f"the stream ended without [DONE]: {lines[-300:]!r}")
    out.first_sign_s = arrivals[0]
    out.longest_gap_s = max((b - a for a, b in pairwise(arrivals)), default=0.0)
    return out


def _read(out: Stream, line: bytes, now: float) -> None:
    if line.startswith(b"HTTP/1.1 ") and b" 200 " not in line:
        raise ConnectionError(line.decode())
    if line.startswith(b":") and (found := _FRACTION.search(line)):
        out.fractions.append(float(found[1]))
    elif line == b"data: [DONE]":
        out.done_s = now
    elif line.startswith(b"data: {"):
        choices = json.loads(line[6:]).get("choices")
        content = choices[0]["delta"].get("content") if choices else None
        if content:
            out.first_token_s = out.first_token_s or now
            out.text += content
