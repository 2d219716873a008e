"""LangChain for Python: ChatOpenAI, blocking and async, streaming and not."""

from __future__ import annotations

import asyncio

from _suite import QUESTION, Answer, main
from langchain_openai import ChatOpenAI


def _llm(base_url: str, model: str) -> ChatOpenAI:
    return ChatOpenAI(model=model, base_url=base_url, api_key="none", temperature=0, max_tokens=32)


def plain(base_url: str, model: str) -> Answer:
    return Answer(_llm(base_url, model).invoke(QUESTION).content)


def stream(base_url: str, model: str) -> Answer:
    whole = None
    for chunk in _llm(base_url, model).stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    return Answer(whole.content)


def async_plain(base_url: str, model: str) -> Answer:
    async def run() -> Answer:
        return Answer((await _llm(base_url, model).ainvoke(QUESTION)).content)

    return asyncio.run(run())


def async_stream(base_url: str, model: str) -> Answer:
    async def run() -> Answer:
        return Answer("".join([chunk.content async for chunk in _llm(base_url, model).astream(QUESTION)]))

    return asyncio.run(run())


if __name__ == "__main__":
    modes = {"plain": plain, "stream": stream, "async_plain": async_plain, "async_stream": async_stream}
    main("langchain-openai", modes)
