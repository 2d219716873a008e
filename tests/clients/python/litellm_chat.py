"""litellm as a library: completion and acompletion, streaming and not."""

from __future__ import annotations

import asyncio
from typing import Any

import litellm
from _suite import LIMITS, MESSAGES, Answer, main


def _call(base_url: str, model: str) -> dict[str, Any]:
    return {"model": f"openai/{model}", "api_base": base_url, "api_key": "none", "messages": MESSAGES, **LIMITS}


def plain(base_url: str, model: str) -> Answer:
    message = litellm.completion(**_call(base_url, model)).choices[0].message
    return Answer(message.content, message.role)


def stream(base_url: str, model: str) -> Answer:
    chunks = list(litellm.completion(stream=True, **_call(base_url, model)))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES).choices[0].message
    assert whole.content == text, (whole.content, text)
    return Answer(text, whole.role)


def async_plain(base_url: str, model: str) -> Answer:
    message = asyncio.run(litellm.acompletion(**_call(base_url, model))).choices[0].message
    return Answer(message.content, message.role)


def async_stream(base_url: str, model: str) -> Answer:
    async def run() -> Answer:
        stream = await litellm.acompletion(stream=True, **_call(base_url, model))
        return Answer("".join([chunk.choices[0].delta.content or "" async for chunk in stream]))

    return asyncio.run(run())


if __name__ == "__main__":
    main("litellm", {"plain": plain, "stream": stream, "async_plain": async_plain, "async_stream": async_stream})
