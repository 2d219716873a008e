"""Signatures after the Standard Webhooks convention (https://www.standardwebhooks.com). Pure.

Three headers: ``webhook-id`` (the same at every try), ``webhook-timestamp`` (of this try, seconds) and
``webhook-signature``: ``v1,`` and the base64 of HMAC-SHA256 over ``id.timestamp.body``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from rewarm.errors import ConfigInvalid

_PREFIX = "whsec_"
_MIN_BYTES, _MAX_BYTES = 24, 64  # what the convention asks for


@dataclass(frozen=True, slots=True)
class Secret:
    """One name's keys. Several while a key is replaced: receivers accept a message that any of theirs signed."""

    keys: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Secret:
        """``whsec_<base64>``, several separated by spaces. Raise ValueError without repeating the secret."""
        return cls(tuple(_key(part) for part in text.split()))


def read_secrets(names: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Secret]:
    """Name → secret, of those whose environment variable is set. Raise ConfigInvalid for one that is no secret."""
    out = {}
    for name, variable in names.items():
        text = environ.get(variable, "").strip()
        if not text:
            continue
        try:
            out[name] = Secret.parse(text)
        except ValueError as error:
            raise ConfigInvalid(
                f"jobs.webhooks.secrets.{name}: the environment variable {variable}: {error}"
            ) from error
    return out


def sign(secret: Secret, message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The three headers."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    signatures = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in secret.keys]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def _key(text: str) -> bytes:
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"a secret is {_PREFIX} and base64, as of: openssl rand -base64 32") from None
    if not text.startswith(_PREFIX) or not _MIN_BYTES <= len(key) <= _MAX_BYTES:
        raise ValueError(f"a secret is {_PREFIX} and the base64 of {_MIN_BYTES} to {_MAX_BYTES} bytes")
    return key
