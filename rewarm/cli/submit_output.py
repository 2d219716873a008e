"""What ``rewarm submit`` keeps beside its output, so that a broken run can go on: ids of jobs, results so far.

``OUT.part`` grows by one row a line of the input, in its order, and becomes ``OUT`` when it is complete: ``OUT`` is
never half a file. ``OUT.state`` holds the jobs' ids. It only saves questions: without it the next run submits
everything again under the same idempotency keys, which makes no second job.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from rewarm.errors import CommandRefused

_VERSION = 1


class Output:
    """``run`` is what makes two runs the same one: file, name, gateway. Use it as a context manager.

    Raise CommandRefused where another `rewarm submit` writes the same output now, and click.FileError.
    """

    def __init__(self, out: Path, run: Mapping[str, str], *, keep_state: bool) -> None:
        self.out = out
        self.part = out.with_name(out.name + ".part")
        self.state = out.with_name(out.name + ".state")
        self.ids: dict[int, str] = {}  # line → job
        self.failures: dict[str, int] = {}  # status → rows, of those written so far
        self.written = 0  # rows
        self._header = {"rewarm_submit": _VERSION, **run}
        self._keep_state = keep_state
        self._part: BinaryIO | None = None
        self._state: BinaryIO | None = None

    def __enter__(self) -> Output:
        try:
            self._part = self.part.open("a+b")
            try:
                fcntl.flock(self._part, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandRefused(f"another `rewarm submit` writes {self.out} now") from None
            same = self._read_state()
            if self._keep_state:
                self._state = self.state.open("ab" if same else "wb")
                if not same:
                    self._line(self._state, self._header)
            if not same:
                self._part.truncate(0)
        except OSError as error:
            self.close()
            raise click.FileError(str(error.filename or self.out), error.strerror or str(error)) from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for file in (self._part, self._state):
            if file is not None:
                file.close()

    # --- while it runs -----------------------------------------------------------------------------------------------

    def accepted(self, line: int, id_: str) -> None:
        self.ids[line] = id_
        if self._state is not None:
            self._line(self._state, {"line": line, "id": id_})

    def resume(self, lines: Iterable[int]) -> None:
        """Keep the rows that are there, as far as they are those of ``lines`` in this order."""
        assert self._part is not None
        self._part.seek(0)
        end = 0
        for line, raw in zip(lines, self._part, strict=False):
            row = _json(raw) if raw.endswith(b"\n") else {}
            if row.get("line") != line:
                break
            end += len(raw)
            self._count(row)
        self._part.truncate(end)
        self._part.seek(0, os.SEEK_END)

    def write(self, row: Mapping[str, Any]) -> None:
        assert self._part is not None
        self._part.write(msgspec.json.encode(row) + b"\n")
        self._part.flush()
        self._count(row)

    def complete(self) -> None:
        """Every line has its row."""
        assert self._part is not None
        os.fsync(self._part.fileno())
        self.part.replace(self.out)
        self.state.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Nothing was submitted, and nothing is to be gone on with."""
        if not self.ids and not self.written:
            self.part.unlink(missing_ok=True)
            self.state.unlink(missing_ok=True)

    # --- files -------------------------------------------------------------------------------------------------------

    def _count(self, row: Mapping[str, Any]) -> None:
        self.written += 1
        status = str(row.get("status"))
        self.failures[status] = self.failures.get(status, 0) + 1

    def _read_state(self) -> bool:
        """Whether the state that lies there is of this run; its ids are taken then."""
        try:
            rows = [_json(raw) for raw in self.state.read_bytes().splitlines(keepends=True) if raw.endswith(b"\n")]
        except FileNotFoundError:
            return False
        if not rows or rows[0] != self._header:
            return False
        for row in rows[1:]:
            line, id_ = row.get("line"), row.get("id")
            if isinstance(line, int) and isinstance(id_, str):
                self.ids[line] = id_
        self._cut_torn_line()
        return True

    def _cut_torn_line(self) -> None:
        """The last one may be half written: what is appended must not be glued to it."""
        data = self.state.read_bytes()
        end = data.rfind(b"\n") + 1
        if end != len(data):
            os.truncate(self.state, end)

    @staticmethod
    def _line(file: BinaryIO, data: Mapping[str, Any]) -> None:
        file.write(json.dumps(data).encode() + b"\n")
        file.flush()


def _json(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
