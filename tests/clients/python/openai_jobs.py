"""openai-python, unchanged: responses in the background, polled and followed, and a batch of
as many lines as the third argument says."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import openai
from _suite import PROMPT, QUESTION, Answer, main

LINES = int(sys.argv[3])
WAITING = ("queued", "in_progress")
GOING_ON = ("validating", "in_progress", "finalizing")


def _client(base_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key="none")


def _ask(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "input": QUESTION, "temperature": 0, "max_output_tokens": 32, **fields}


def plain(base_url: str, model: str) -> Answer:
    response = _client(base_url).responses.create(**_ask(model))
    return Answer(response.output_text)


def stream(base_url: str, model: str) -> Answer:
    """The helper, which checks the order of events."""
    with _client(base_url).responses.stream(**_ask(model)) as events:
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        final = events.get_final_response()
    assert final.output_text == text
    return Answer(text)


def background_polled(base_url: str, model: str) -> Answer:
    client = _client(base_url)
    response = client.responses.create(**_ask(model, background=True))
    seen = [response.status]
    while response.status in WAITING:
        time.sleep(0.2)
        response = client.responses.retrieve(response.id)
        if response.status != seen[-1]:
            seen.append(response.status)
    return Answer(response.output_text, details={"statuses": seen, "usage": response.usage.total_tokens})


def background_resumed(base_url: str, model: str) -> Answer:
    """Cut after the first events and after some text, and once more; each time it goes on where it was."""
    client = _client(base_url)
    numbers: list[int] = []
    deltas: list[str] = []
    final = None
    cuts = 0
    events = client.responses.create(**_ask(model, background=True, stream=True))
    first = next(events)
    response_id = first.response.id
    numbers.append(first.sequence_number)
    events.close()
    while final is None:
        cuts += 1
        events = client.responses.retrieve(response_id, stream=True, starting_after=numbers[-1])
        for read, event in enumerate(events, 1):
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                deltas.append(event.delta)
            if event.type in ("response.completed", "response.incomplete", "response.failed"):
                final = event.response
            if read == 4:
                break
    return Answer(final.output_text, details={"numbers": numbers, "deltas": "".join(deltas), "cuts": cuts})


def cancelled(base_url: str, model: str) -> Answer:
    client = _client(base_url)
    response = client.responses.create(**_ask(model, background=True))
    response = client.responses.cancel(response.id)
    again = client.responses.cancel(response.id)
    client.responses.delete(response.id)
    try:
        client.responses.retrieve(response.id)
    except openai.NotFoundError as error:
        return Answer("", details={"status": [response.status, again.status], "then": error.code})
    return Answer("", details={"then": "it is still there"})


def batch(base_url: str, model: str) -> Answer:
    client = _client(base_url)
    messages = [{"role": "user", "content": QUESTION}]
    lines = [
        {
            "custom_id": f"request-{n}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": model, "messages": messages, "temperature": 0, "max_tokens": 32},
        }
        for n in range(LINES)
    ]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = client.files.create(file=("batch.jsonl", data), purpose="batch")
    made = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"description": "many lines"},
    )
    done = client.batches.retrieve(made.id)
    counts = []
    while done.status in GOING_ON:
        time.sleep(0.2)
        done = client.batches.retrieve(made.id)
        counts.append(done.request_counts.completed)
    results = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
    texts = {result["response"]["body"]["choices"][0]["message"]["content"] for result in results}
    details = {
        "status": done.status,
        "counts": done.request_counts.model_dump(),
        "rises": counts == sorted(counts),
        "ids": [result["custom_id"] for result in results],
        "texts": sorted(texts),
        "listed": made.id in [each.id for each in client.batches.list()],
        "files": {file.id, done.output_file_id} <= {each.id for each in client.files.list()},
        "deleted": client.files.delete(file.id).deleted,
    }
    return Answer(min(texts), details=details)


def batch_refused(base_url: str, model: str) -> Answer:
    client = _client(base_url)
    body = {"model": model, "prompt": PROMPT}
    lines = [{"custom_id": "same", "method": "POST", "url": "/v1/completions", "body": body}] * 2
    file = client.files.create(file="\n".join(map(json.dumps, lines)).encode(), purpose="batch")
    made = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    while made.status in GOING_ON:
        time.sleep(0.1)
        made = client.batches.retrieve(made.id)
    return Answer("", details={"status": made.status, "errors": [[e.line, e.code] for e in made.errors.data]})


if __name__ == "__main__":
    main(
        "openai",
        {
            "plain": plain,
            "stream": stream,
            "background_polled": background_polled,
            "background_resumed": background_resumed,
            "cancelled": cancelled,
            "batch": batch,
            "batch_refused": batch_refused,
        },
    )
