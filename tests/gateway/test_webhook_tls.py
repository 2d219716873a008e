"""Webhooks over TLS: the certificate must be that of the URL's host, from an authority the machine trusts."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web
from cryptography import x509

from tests.e2e.stack import ROOT, free_port
from tests.gateway.certificates import certificate

pytestmark = pytest.mark.asyncio

# In a process of its own, because what a process trusts is read once.
POST = """
import asyncio, sys
from gateway.webhooks import Allowed
from gateway.webhooks.sender import Sender
from gateway.webhooks.target import parse_target

async def main():
    sender = Sender(Allowed(private=True), 5.0)
    answer = await sender.post(parse_target(sys.argv[1]), {}, b"{}")
    await sender.close()
    print(answer.status, answer.error)

asyncio.run(main())
"""


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    return certificate(tmp_path, x509.IPAddress(ipaddress.ip_address("127.0.0.1")))


@pytest_asyncio.fixture
async def port(pem: Path) -> AsyncIterator[int]:
    async def handle(request: web.BaseRequest) -> web.Response:
        return web.Response(status=202)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    found = free_port()
    await web.TCPSite(runner, "127.0.0.1", found, ssl_context=context).start()
    yield found
    await runner.cleanup()


async def post(url: str, trusted: Path | None) -> str:
    env = {"PYTHONPATH": str(ROOT)} | ({"SSL_CERT_FILE": str(trusted)} if trusted else {})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", POST, url, env=env, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return out.decode().strip()


async def test_a_receiver_with_a_good_certificate(port: int, pem: Path) -> None:
    assert await post(f"https://127.0.0.1:{port}/", pem) == "202"


async def test_a_receiver_that_nobody_vouches_for(port: int) -> None:
    assert "self-signed certificate" in await post(f"https://127.0.0.1:{port}/", None)


async def test_a_receiver_that_speaks_no_tls() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    found = free_port()
    async with await asyncio.start_server(handle, "127.0.0.1", found):
        assert (await post(f"https://127.0.0.1:{found}/", None)).startswith("None no TLS connection: ")


async def test_a_receiver_with_the_certificate_of_another_host(port: int, pem: Path) -> None:
    assert "Hostname mismatch" in await post(f"https://localhost:{port}/", pem)
