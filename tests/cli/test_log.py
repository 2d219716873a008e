"""Log lines for a person and for a program."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from rewarm import log


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level, logging.raiseExceptions)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    logging.raiseExceptions = before[2]


def test_for_a_person() -> None:
    out = io.StringIO()
    log.setup("worker", stream=out)
    logging.getLogger("rewarm.worker.agent").info("started replica=%s", "m-1")
    assert out.getvalue().rstrip().endswith("worker  INFO    worker.agent: started replica=m-1")


def test_for_a_program() -> None:
    out = io.StringIO()
    log.setup("gateway", json_lines=True, stream=out)
    try:
        raise ValueError("x")
    except ValueError:
        logging.getLogger("rewarm.gateway").exception("it failed", extra={"model": "m"})
    line = json.loads(out.getvalue())
    assert (line["role"], line["level"], line["logger"], line["message"]) == (
        "gateway",
        "error",
        "rewarm.gateway",
        "it failed",
    )
    assert line["model"] == "m"
    assert "ValueError: x" in line["exception"]


def test_libraries_only_when_something_is_wrong() -> None:
    out = io.StringIO()
    log.setup("serve", stream=out, level="debug")
    logging.getLogger("asyncio").info("chatter")
    logging.getLogger("rewarm.cli").debug("ours")
    assert "chatter" not in out.getvalue()
    assert "ours" in out.getvalue()
