"""The file of ``rewarm submit``: one request a line, as a plain body or as a line of OpenAI's batch format."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from rewarm.errors import InputInvalid
from rewarm.not_json import why_not_json

MAX_LINE = 16 * 2**20
"""Longer than any body that a gateway may be configured to take."""

MAX_CUSTOM_ID = 512

_BATCH_FIELDS = ("custom_id", "method", "url")


@dataclass(frozen=True, slots=True)
class Line:
    """A request as it stands in the file; ``number`` counts from 1, blank lines included."""

    number: int
    offset: int
    length: int
    crc: int
    custom_id: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    endpoint: str
    body: bytes  # JSON, as it stands in the file
    model: str
    custom_id: str | None = None


@dataclass(frozen=True, slots=True)
class BadLine:
    number: int
    problem: str

    def __str__(self) -> str:
        return f"line {self.number}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Input:
    """A file that was read once: where its good lines are, and what is wrong with the others."""

    path: Path
    sha256: str
    lines: tuple[Line, ...]
    bad: tuple[BadLine, ...]

    def open(self) -> BinaryIO:
        return self.path.open("rb")

    @staticmethod
    def read(file: BinaryIO, line: Line, endpoint: str) -> Request:
        """A good line's request. Raise InputInvalid where the file has changed since it was read."""
        file.seek(line.offset)
        raw = file.read(line.length)
        if zlib.crc32(raw) != line.crc:
            raise InputInvalid(f"line {line.number} is another one than before: the file was changed meanwhile")
        return read_line(raw, endpoint)


def read_file(path: Path, endpoint: str, models: Collection[str] | None = None) -> Input:
    """Every line is looked at before the first is submitted. ``models``, where it is known, are all names that exist.

    Raise InputInvalid where the file cannot be read.
    """
    digest = hashlib.sha256()
    good: list[Line] = []
    bad: list[BadLine] = []
    seen: dict[str, int] = {}
    offset = 0
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                digest.update(raw)
                if raw.strip():
                    try:
                        request = read_line(raw, endpoint)
                        _check(request, number, seen, models)
                        good.append(Line(number, offset, len(raw), zlib.crc32(raw), request.custom_id))
                    except ValueError as error:
                        bad.append(BadLine(number, str(error)))
                offset += len(raw)
    except OSError as error:
        raise InputInvalid(f"{path} cannot be read: {error.strerror or error}") from error
    return Input(path, digest.hexdigest(), tuple(good), tuple(bad))


def read_line(raw: bytes, endpoint: str) -> Request:
    """``endpoint`` is for lines that name none. Raise ValueError that says what is wrong with it."""
    if len(raw) > MAX_LINE:
        raise ValueError(f"{len(raw)} bytes, and at most {MAX_LINE} can be sent")
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        raise ValueError("not a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {why_not_json(raw, error)}") from None
    if "body" not in fields:
        if "custom_id" in fields and "url" in fields:
            raise ValueError("`body` is missing")
        return Request(endpoint, raw.strip(), _model(fields, ""))
    for name in fields.keys() - {"body", *_BATCH_FIELDS}:
        raise ValueError(f"`{name}` has no place beside `body`")
    method = _text(fields, "method")
    if method is not None and method != "POST":
        raise ValueError("`method` must be POST")
    url = _text(fields, "url") or endpoint
    if not url.startswith("/v1/"):
        raise ValueError("`url` must be an endpoint's path, as /v1/chat/completions")
    custom_id = _text(fields, "custom_id")
    if custom_id is not None and not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        raise ValueError(f"`custom_id` must have 1 to {MAX_CUSTOM_ID} characters")
    body = bytes(fields["body"])
    try:
        inner = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        raise ValueError("`body` must be an object") from None
    return Request(url, body, _model(inner, "body."), custom_id)


def _model(fields: dict[str, msgspec.Raw], where: str) -> str:
    model = _text(fields, "model", where)
    if not model:
        raise ValueError(f"`{where}model` is missing")
    return model


def _text(fields: dict[str, msgspec.Raw], name: str, where: str = "") -> str | None:
    raw = fields.get(name)
    found: Any = None if raw is None else msgspec.json.decode(raw)
    if found is not None and not isinstance(found, str):
        raise ValueError(f"`{where}{name}` must be text")
    return found


def _check(request: Request, number: int, seen: dict[str, int], models: Collection[str] | None) -> None:
    if models is not None and request.model not in models:
        raise ValueError(f"no model is named {request.model!r}")
    if request.custom_id is not None:
        first = seen.setdefault(request.custom_id, number)
        if first != number:
            raise ValueError(f"the `custom_id` {request.custom_id!r} is that of line {first} as well")
