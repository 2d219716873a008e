"""A line of a batch's input: what it asks, or what is wrong with it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from gateway.parse import ENDPOINTS, peek
from rewarm.errors import RewarmError
from rewarm.files import LineError
from rewarm.not_json import why_not_json
from rewarm.units import format_bytes

MAX_LINES = 50_000
MAX_CUSTOM_ID = 512
_BOM = b"\xef\xbb\xbf"

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode

CheckLine = Callable[[str, bytes], RewarmError | None]
"""What is wrong with a model's name, or with the body for it, for whoever asks."""


@dataclass(frozen=True, slots=True)
class Line:
    number: int  # from 1
    end: int  # offset of the byte after it, its line feed included
    custom_id: str
    model: str
    body: bytes  # what the engine is sent


@dataclass(frozen=True, slots=True)
class Bad:
    """A line that cannot be carried out. ``custom_id`` where it could be read."""

    number: int
    end: int
    error: LineError
    custom_id: str | None = None


class Splitter:
    """Bytes in pieces → lines with the offset after each. Blank ones are counted, not given."""

    def __init__(self, *, number: int = 0, offset: int = 0) -> None:
        self.number = number  # of the last line that was split off
        self.offset = offset  # where the next one begins
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[tuple[int, int, bytes]]:
        """(number, end, line) of each whole line."""
        data = self._rest + piece
        start = 0
        while (at := data.find(b"\n", start)) >= 0:
            yield from self._line(data[start : at + 1])
            start = at + 1
        self._rest = data[start:]

    def finish(self) -> Iterator[tuple[int, int, bytes]]:
        """The last line, where no line feed ends it."""
        rest, self._rest = self._rest, b""
        if rest:
            yield from self._line(rest)

    def _line(self, raw: bytes) -> Iterator[tuple[int, int, bytes]]:
        self.number += 1
        self.offset += len(raw)
        if self.number == 1:
            raw = raw.removeprefix(_BOM)
        line = raw.strip()
        if line:
            yield self.number, self.offset, line


def read_line(number: int, end: int, raw: bytes, *, endpoint: str, max_body: int, check: CheckLine) -> Line | Bad:
    custom_id: str | None = None

    def bad(code: str, message: str, param: str | None = None) -> Bad:
        return Bad(number, end, LineError(code=code, message=message, line=number, param=param), custom_id)

    try:
        fields = _fields(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return bad("invalid_json_line", f"this line is no JSON object: {why_not_json(raw, error)}")
    custom_id = _string(fields, "custom_id")
    if not custom_id or len(custom_id) > MAX_CUSTOM_ID:
        told = f"`custom_id` must be a text of 1 to {MAX_CUSTOM_ID} characters"
        custom_id = None
        return bad("missing_required_parameter" if "custom_id" not in fields else "invalid_value", told, "custom_id")
    method, url = _string(fields, "method"), _string(fields, "url")
    if method != "POST":
        return bad("invalid_method", "`method` must be POST", "method")
    if url != endpoint:
        return bad("invalid_url", f"`url` must be the batch's endpoint, {endpoint}", "url")
    body = fields.get("body")
    if body is None:
        return bad("missing_required_parameter", "`body` is missing", "body")
    try:
        asked = _fields(body)
        # A batch has whole answers. The engine's other parameters are its own to judge.
        for name in ("stream", "stream_options", "background"):
            asked.pop(name, None)
        data = msgspec.json.encode(asked)
        seen = peek(data, ENDPOINTS[endpoint])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return bad("invalid_value", "`body` must be a JSON object", "body")
    except RewarmError as error:
        return bad(error.code, error.message, f"body.{error.param}" if error.param else "body")
    if len(data) > max_body:
        return bad("job_body_too_large", f"`body` has {len(data)} bytes, of at most {format_bytes(max_body)}", "body")
    wrong = check(seen.model, data)
    if wrong is not None:
        return bad(wrong.code, wrong.message, f"body.{wrong.param or 'model'}")
    return Line(number, end, custom_id, seen.model, data)


def _string(fields: dict[str, msgspec.Raw], name: str) -> str | None:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return _text(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class Validation:
    """All lines of a file, one after the other: how many there are, and what is wrong with which."""

    MAX_ERRORS = 1000

    def __init__(self) -> None:
        self.total = 0
        self.errors: list[LineError] = []
        self._seen: set[str] = set()

    @property
    def hopeless(self) -> bool:
        """More of the file would change nothing."""
        return len(self.errors) >= self.MAX_ERRORS or self.total > MAX_LINES

    def add(self, line: Line | Bad) -> None:
        self.total += 1
        if isinstance(line, Bad):
            self.errors.append(line.error)
        elif line.custom_id in self._seen:
            told = f"the custom_id {line.custom_id!r} is there already"
            self.errors.append(LineError(code="duplicate_custom_id", message=told, line=line.number, param="custom_id"))
        if line.custom_id is not None:
            self._seen.add(line.custom_id)

    def refused(self, *, skip: bool) -> bool:
        """The batch must not begin. With ``skip`` single bad lines do not matter."""
        if self.total == 0:
            self.errors = [LineError(code="empty_file", message="the file has no line")]
        elif self.total > MAX_LINES:
            self.errors = [LineError(code="too_many_lines", message=f"a batch has at most {MAX_LINES} lines")]
        elif skip and len(self.errors) < min(self.total, self.MAX_ERRORS):
            return False
        return bool(self.errors)


def number_of(errors: tuple[LineError, ...]) -> dict[int, LineError]:
    return {error.line: error for error in errors if error.line is not None}
