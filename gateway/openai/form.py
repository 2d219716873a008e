"""A multipart body as a client library sends a file: some short fields and one file. Pure.

The whole body is in memory already, within its bound, so nothing is spooled to a disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from rewarm.errors import InvalidRequest

_MAX_PARTS = 32
_MAX_FIELD_BYTES = 4096
_MAX_FILENAME = 255


@dataclass(frozen=True, slots=True)
class Form:
    fields: dict[str, str]
    filename: str
    data: bytes | None  # of the part ``file``; None where there is none


class _Part:
    """What the parser has seen of a part: places in the body, not copies."""

    __slots__ = ("filename", "headers", "name", "pieces", "size")

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.pieces: list[memoryview] = []
        self.size = 0
        self.name = ""
        self.filename: str | None = None

    def named(self) -> None:
        kind, options = parse_options_header(self.headers.get(b"content-disposition"))
        if kind != b"form-data" or b"name" not in options:
            raise InvalidRequest("every part of the form needs `Content-Disposition: form-data` with a name")
        self.name = options[b"name"].decode("utf-8", "replace")
        filename = options.get(b"filename")
        self.filename = None if filename is None else filename.decode("utf-8", "replace")


class _Reader:
    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.ended = False
        self._field = b""
        self._value = b""

    def callbacks(self) -> dict[str, object]:
        return {
            "on_part_begin": self._begin,
            "on_part_data": self._data,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": lambda: self.parts[-1].named(),
            "on_end": self._end,
        }

    def _begin(self) -> None:
        if len(self.parts) >= _MAX_PARTS:
            raise InvalidRequest(f"the form has more than {_MAX_PARTS} parts")
        self.parts.append(_Part())

    def _data(self, data: bytes, start: int, end: int) -> None:
        part = self.parts[-1]
        part.size += end - start
        if part.name != "file" and part.size > _MAX_FIELD_BYTES:
            raise InvalidRequest(f"`{part.name}` has more than {_MAX_FIELD_BYTES} bytes", param=part.name)
        part.pieces.append(memoryview(data)[start:end])

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self.parts[-1].headers[self._field.lower()] = self._value
        self._field = self._value = b""

    def _end(self) -> None:
        self.ended = True


def read_form(content_type: str, body: bytes) -> Form:
    """Raise InvalidRequest for anything that is not a whole form."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise InvalidRequest("a file is uploaded as multipart/form-data: the fields `purpose` and `file`")
    reader = _Reader()
    try:
        parser = MultipartParser(boundary, reader.callbacks())  # type: ignore[arg-type]  # its TypedDict names them all
        parser.write(body)
    except FormParserError as error:
        raise InvalidRequest(f"the form cannot be read: {error}") from error
    if not reader.ended:
        raise InvalidRequest("the form ends before its last boundary")
    fields: dict[str, str] = {}
    filename, data = "", None
    for part in reader.parts:
        if part.name == "file" and part.filename is not None:
            if data is not None:
                raise InvalidRequest("one file at a time", param="file")
            filename, data = part.filename, b"".join(part.pieces)
        elif part.name in fields:
            raise InvalidRequest(f"`{part.name}` is there twice", param=part.name)
        else:
            fields[part.name] = b"".join(part.pieces).decode("utf-8", "replace")
    return Form(fields, _plain(filename), data)


def _plain(filename: str) -> str:
    """The name alone: it comes back in listings and in a header, and is no path of ours."""
    name = filename.replace("\\", "/").rpartition("/")[2]
    name = "".join(c for c in name if c.isprintable() and c != '"')
    return name[:_MAX_FILENAME] or "upload"
