"""What the client scripts share: each runs its modes at once against one model and prints one JSON line.

    python openai_chat.py http://127.0.0.1:8080/v1 MODEL

A mode is a function (base URL, model) → :class:`Answer`, written the way the client's own documentation shows it, with
no setting that is there for a slow start: default timeouts, default retries. All modes start together, so that each of
them meets the model while it is cold. Standard library only: each client's environment imports it.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

QUESTION = "What is the capital of France? Answer in one sentence."  # without the second, SmolLM2 wavers
PROMPT = "The capital of France is"
MESSAGES = [{"role": "user", "content": QUESTION}]
LIMITS: dict[str, Any] = {"temperature": 0, "max_tokens": 32}


@dataclass
class Answer:
    text: str
    role: str | None = None  # as the client shows it, if it does
    prompt: str = QUESTION
    details: dict[str, Any] = field(default_factory=dict)


Mode = Callable[[str, str], Answer]


def main(package: str | None, modes: dict[str, Mode]) -> None:
    base_url, model = sys.argv[1:3]
    results: dict[str, dict[str, Any]] = {}

    def run(name: str, mode: Mode) -> None:
        started = time.monotonic()
        result: dict[str, Any] = {"error": None}
        try:
            result |= asdict(mode(base_url, model))
        except BaseException:  # noqa: BLE001  # whatever a client raises is the result
            result["error"] = traceback.format_exc(limit=-4)
        result["seconds"] = round(time.monotonic() - started, 3)
        results[name] = result

    threads = [threading.Thread(target=run, args=item) for item in modes.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    version = importlib.metadata.version(package) if package else sys.version.split()[0]
    print(json.dumps({"package": package, "version": version, "modes": results}))
