"""openai-python, 1.3 to the newest: chat and text completions, the blocking and the async client, streaming and not."""

from __future__ import annotations

import asyncio

import openai
from _suite import LIMITS, MESSAGES, PROMPT, Answer, Mode, main


def _client(base_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key="none")


def plain(base_url: str, model: str) -> Answer:
    message = _client(base_url).chat.completions.create(model=model, messages=MESSAGES, **LIMITS).choices[0].message
    return Answer(message.content, message.role)


def stream(base_url: str, model: str) -> Answer:
    text = role = ""
    for chunk in _client(base_url).chat.completions.create(model=model, messages=MESSAGES, stream=True, **LIMITS):
        text += chunk.choices[0].delta.content or ""
        role += chunk.choices[0].delta.role or ""
    return Answer(text, role)


def async_plain(base_url: str, model: str) -> Answer:
    async def run() -> Answer:
        client = openai.AsyncOpenAI(base_url=base_url, api_key="none")
        answer = await client.chat.completions.create(model=model, messages=MESSAGES, **LIMITS)
        return Answer(answer.choices[0].message.content, answer.choices[0].message.role)

    return asyncio.run(run())


def async_stream(base_url: str, model: str) -> Answer:
    async def run() -> Answer:
        client = openai.AsyncOpenAI(base_url=base_url, api_key="none")
        text = role = ""
        async for chunk in await client.chat.completions.create(model=model, messages=MESSAGES, stream=True, **LIMITS):
            text += chunk.choices[0].delta.content or ""
            role += chunk.choices[0].delta.role or ""
        return Answer(text, role)

    return asyncio.run(run())


def stream_helper(base_url: str, model: str) -> Answer:
    """The event helper accumulates deltas by itself, and is picky about what it adds up."""
    text = ""
    with _client(base_url).chat.completions.stream(model=model, messages=MESSAGES, **LIMITS) as events:
        for event in events:
            if event.type == "content.delta":
                text += event.delta
        final = events.get_final_completion().choices[0].message
    assert final.content == text, (final.content, text)
    return Answer(text, final.role)


def usage_stream(base_url: str, model: str) -> Answer:
    text, usage = "", None
    for chunk in _client(base_url).chat.completions.create(
        model=model, messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **LIMITS
    ):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
    return Answer(text, details={"completion_tokens": usage.completion_tokens})


def text_plain(base_url: str, model: str) -> Answer:
    answer = _client(base_url).completions.create(model=model, prompt=PROMPT, **LIMITS)
    return Answer(answer.choices[0].text, prompt=PROMPT)


def text_stream(base_url: str, model: str) -> Answer:
    chunks = _client(base_url).completions.create(model=model, prompt=PROMPT, stream=True, **LIMITS)
    return Answer("".join(chunk.choices[0].text for chunk in chunks), prompt=PROMPT)


MODES: dict[str, Mode] = {
    "plain": plain,
    "stream": stream,
    "async_plain": async_plain,
    "async_stream": async_stream,
    "text_plain": text_plain,
    "text_stream": text_stream,
}

if __name__ == "__main__":
    version = tuple(int(part) for part in openai.__version__.split(".")[:2])
    if version >= (1, 92):  # before, the helper was a beta elsewhere
        MODES["stream_helper"] = stream_helper
    if version >= (1, 26):
        MODES["usage_stream"] = usage_stream
    main("openai", MODES)
