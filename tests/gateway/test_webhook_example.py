"""The receiver in docs/webhooks.md works, and openai's library verifies the same messages."""

from __future__ import annotations

import asyncio
import base64
import re
import socket
import sys
import time
from pathlib import Path

import openai
import pytest

from gateway.webhooks import Allowed, Secret
from gateway.webhooks.sender import Sender
from gateway.webhooks.signing import sign
from gateway.webhooks.target import parse_target
from tests.e2e.stack import free_port, until

KEY = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER_KEY = "whsec_" + base64.b64encode(bytes(32)).decode()
BODY = b'{"id": "msg_1", "type": "job.completed", "data": {"id": "job_1"}}'
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "webhooks.md"


def program() -> str:
    (found,) = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(found)


def listens(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.asyncio
async def test_the_receiver_of_the_document_takes_what_we_sign_and_nothing_else() -> None:
    port = free_port()
    receiver = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", program(), str(port)),
        env={"REWARM_WEBHOOK_SECRET": KEY},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    sender = Sender(Allowed(private=True), 5.0)
    try:
        await until(lambda: listens(port), "the receiver listens")
        target = parse_target(f"http://127.0.0.1:{port}/")
        now = int(time.time())
        good, both = Secret.parse(KEY), Secret.parse(f"{OTHER_KEY} {KEY}")

        async def answer(secret: Secret, at: int, body: bytes, sent: bytes) -> int | None:
            return (await sender.post(target, sign(secret, "msg_1", at, body), sent)).status

        assert await answer(good, now, BODY, BODY) == 204
        assert await answer(both, now, BODY, BODY) == 204
        assert await answer(Secret.parse(OTHER_KEY), now, BODY, BODY) == 401
        assert await answer(good, now, BODY, BODY.replace(b"job_1", b"job_2")) == 401
        assert await answer(good, now - 3600, BODY, BODY) == 401
        assert (await sender.post(target, {}, BODY)).status == 401
    finally:
        receiver.kill()
        out, _ = await receiver.communicate()
        await sender.close()
    assert out.decode() == "job.completed job_1\n", "told twice, taken once"


def test_openai_verifies_it_too() -> None:
    client = openai.OpenAI(api_key="none", webhook_secret=KEY)
    headers = sign(Secret.parse(KEY), "msg_1", int(time.time()), BODY)
    client.webhooks.verify_signature(BODY.decode(), headers)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.verify_signature(BODY.decode() + " ", headers)
