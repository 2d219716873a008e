"""Logging set-up of a process: lines for a person, or one JSON object a line. Called once, by ``rewarm.cli``.

Messages are written ``what happened key=value key=value``; loggers are named ``rewarm.<room>…``.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Protocol

_COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31;1m", "DEBUG": "\x1b[2m"}
_PLAIN_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class Stream(Protocol):
    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


def setup(role: str, *, json_lines: bool = False, level: str = "INFO", stream: Stream | None = None) -> None:
    """``role`` names the process in every line: serve, gateway, worker. Replaces what was set up before."""
    out: Stream = stream if stream is not None else sys.stderr
    handler: logging.StreamHandler[Any] = logging.StreamHandler(out)
    handler.setFormatter(_Json(role) if json_lines else _Human(role, colour=out.isatty()))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)  # libraries
    logging.getLogger("rewarm").setLevel(level.upper())
    logging.raiseExceptions = False  # a reader of our stderr that went away must not end us


class _Human(logging.Formatter):
    def __init__(self, role: str, *, colour: bool) -> None:
        super().__init__()
        self._role, self._colour = role, colour

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        room = record.name.removeprefix("rewarm.")
        line = f"{clock}.{int(record.msecs):03d} {self._role:<7} {record.levelname:<7} {room}: {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        start = _COLOURS.get(record.levelname, "") if self._colour else ""
        return f"{start}{line}\x1b[0m" if start else line


class _Json(logging.Formatter):
    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "ts": round(record.created, 3),
            "level": record.levelname.lower(),
            "role": self._role,
            "pid": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update({k: v for k, v in vars(record).items() if k not in _PLAIN_RECORD})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)
