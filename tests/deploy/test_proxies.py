"""A cold start that is longer than a proxy's patience passes through it: comments and padding keep it alive.

The files are those of deploy/proxies, with other ports and shorter timeouts. That the comments do it, and not a timeout
that is long enough, is shown by a stream without them.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.stack import ROOT, Stack, chat, fake, free_port, post, stream, text_of, until

pytestmark = pytest.mark.timeout(120)

PATIENCE_S = 2
COLD_START_S = 6
HOLDING = {
    "comment_every": "500ms",
    "stream_status_after": "200ms",
    "plain_status_after": "500ms",
    "pad_every": "500ms",
}


@asynccontextmanager
async def fleet(tmp_path: Path, *models: str) -> AsyncIterator[str]:
    """The address of a gateway whose models take longer than the proxies wait."""
    slow = {name: fake("--start-delay", str(COLD_START_S)) for name in models}
    async with Stack(tmp_path / "fleet", slow) as stack:
        serve = await stack.start_serve(holding=HOLDING)
        yield f"127.0.0.1:{serve.port}"
        assert await serve.terminate() == 0


@asynccontextmanager
async def nginx(tmp_path: Path, upstream: str) -> AsyncIterator[str]:
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    assert binary, "nginx is not installed"
    port, folder = free_port(), tmp_path / "nginx"
    folder.mkdir()
    text = (ROOT / "deploy" / "proxies" / "nginx.conf").read_text()
    for pattern, new in (
        (r"server 127\.0\.0\.1:8080;", f"server {upstream};"),
        (r"listen 80;", f"listen 127.0.0.1:{port};"),
        (r"proxy_read_timeout \w+;", f"proxy_read_timeout {PATIENCE_S}s;"),
    ):
        text, count = re.subn(pattern, new, text)
        assert count == 1, pattern
    (folder / "site.conf").write_text(text)
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}include {folder}/site.conf;\n}}\n"
    )
    async with running(binary, "-p", str(folder), "-c", str(folder / "nginx.conf"), port=port) as url:
        yield url


@asynccontextmanager
async def caddy(tmp_path: Path, upstream: str) -> AsyncIterator[str]:
    binary = shutil.which("caddy")
    assert binary, "caddy is not installed"
    port = free_port()
    text = (ROOT / "deploy" / "proxies" / "Caddyfile").read_text()
    for old, new in (
        (":80 {", f"http://127.0.0.1:{port} {{"),
        ("127.0.0.1:8080", upstream),
        ("response_header_timeout 60s", f"response_header_timeout {PATIENCE_S}s"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = tmp_path / "Caddyfile"
    path.write_text(f"{{\n\tadmin off\n\tauto_https off\n\tstorage file_system {tmp_path}/caddy\n}}\n{text}")
    async with running(binary, "run", "--adapter", "caddyfile", "--config", str(path), port=port) as url:
        yield url


@asynccontextmanager
async def running(*command: str, port: int) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
    try:

        async def answers() -> bool:
            assert process.returncode is None, command[0]
            try:
                async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/health") as answer:
                    return answer.status == 200
            except aiohttp.ClientConnectionError:
                return False

        await until(answers, "the proxy answers")
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def streamed(url: str, model: str) -> None:
    events = [event async for event in stream(url, chat(model, "hello"))]
    assert "".join(event.content for event in events) == "You said: hello"
    comments = [event.at for event in events if event.line.startswith(":")]
    assert comments[-1] - comments[0] > PATIENCE_S, "longer than it would have waited in silence"
    pauses = [later - earlier for earlier, later in pairwise(comments)]
    assert max(pauses) < PATIENCE_S, "they came through one by one, not all at the end"


async def plain(url: str, model: str) -> None:
    status, body, _ = await post(url, chat(model, "hello"))
    assert (status, text_of(body)) == (200, "You said: hello")


async def without_comments(url: str, model: str) -> None:
    try:
        lines = [event.line async for event in stream(url, chat(model, "hello"), {"X-Rewarm-Progress": "none"})]
    except aiohttp.ClientPayloadError:
        return  # broken off
    assert not any("said" in line for line in lines), lines


@pytest.mark.asyncio
async def test_behind_nginx_streams_and_plain_answers_outlive_its_patience(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a", "b", "c") as upstream, nginx(tmp_path, upstream) as url:
        await asyncio.gather(streamed(url, "a"), plain(url, "b"), without_comments(url, "c"))


@pytest.mark.asyncio
async def test_behind_caddy_streams_and_plain_answers_outlive_its_patience(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a", "b") as upstream, caddy(tmp_path, upstream) as url:
        await asyncio.gather(streamed(url, "a"), plain(url, "b"))
