"""llama-index: OpenAILike, chat and completion, streaming and not."""

from __future__ import annotations

import asyncio

from _suite import QUESTION, Answer, main
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

CHAT = [ChatMessage(role="user", content=QUESTION)]


def _llm(base_url: str, model: str) -> OpenAILike:
    return OpenAILike(model=model, api_base=base_url, api_key="none", is_chat_model=True, temperature=0, max_tokens=32)


def plain(base_url: str, model: str) -> Answer:
    message = _llm(base_url, model).chat(CHAT).message
    return Answer(message.content, message.role.value)


def stream(base_url: str, model: str) -> Answer:
    last, text = None, ""
    for last in _llm(base_url, model).stream_chat(CHAT):
        text += last.delta or ""
    assert last.message.content == text, (last.message.content, text)
    return Answer(text, last.message.role.value)


def complete(base_url: str, model: str) -> Answer:
    return Answer(_llm(base_url, model).complete(QUESTION).text)


def async_stream(base_url: str, model: str) -> Answer:
    async def run() -> Answer:
        stream = await _llm(base_url, model).astream_chat(CHAT)
        return Answer("".join([part.delta or "" async for part in stream]))

    return asyncio.run(run())


if __name__ == "__main__":
    main(
        "llama-index-llms-openai-like",
        {"plain": plain, "stream": stream, "complete": complete, "async_stream": async_stream},
    )
