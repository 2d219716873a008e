"""What every message has, and its way to bytes and back.

msgspec writes the msgpack format and validates the types on the way in: one declaration is schema, codec and check.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

SCHEMA_VERSION = 1


class UnknownSchema(ValueError):
    """A message of another schema version, or bytes that are no message of ours."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    v: int = SCHEMA_VERSION


M = TypeVar("M", bound=Message)
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes, kind: type[M]) -> M:
    """Raise :class:`UnknownSchema` for foreign bytes, wrong types or another schema version."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        message: M = decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise UnknownSchema(f"not a {getattr(kind, '__name__', kind)}: {error}") from error
    if message.v != SCHEMA_VERSION:
        raise UnknownSchema(f"schema version {message.v}, this process speaks {SCHEMA_VERSION}")
    return message


def to_json(message: Message) -> dict[str, Any]:
    """Plain dictionaries for HTTP and ``--json``, without the schema version."""
    out: dict[str, Any] = msgspec.to_builtins(message)
    out.pop("v", None)
    return out
