"""A webhook's URL as far as it can be judged without the network. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from yarl import URL

from rewarm.errors import WebhookRefused

MAX_URL = 2048

# What resolvers take for a number: 127.1, 2130706433, 0x7f.0.0.1, 0177.0.0.1.
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")


@dataclass(frozen=True, slots=True)
class Target:
    """``url`` is what is requested: parsed once, by the library that also connects, so that both read it alike."""

    url: URL
    host: str  # lower case, in IDNA's form
    port: int

    @property
    def name(self) -> str:
        """Of whoever answers there, for bounds and messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_target(text: str) -> Target:
    """Raise WebhookRefused."""
    if len(text) > MAX_URL:
        raise _refused(f"the URL is longer than {MAX_URL} characters")
    if any(c <= " " or c == "\x7f" or c == "\\" for c in text):
        raise _refused("the URL has spaces, control characters or backslashes; encode them")
    try:
        url = URL(text)
        host, port = url.raw_host, url.port  # both raise for nonsense, not URL() itself
    except ValueError as error:
        raise _refused(f"the URL cannot be read: {error}") from error
    if url.scheme not in ("http", "https"):
        raise _refused("the URL must start with https:// or http://")
    if url.raw_user is not None or url.raw_password is not None:
        raise _refused("the URL must not carry a user or a password; the signature says who calls")
    if not host or port is None or not 0 < port < 65536:
        raise _refused("the URL names no host, or no possible port")
    if _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]) and not _canonical(host):
        raise _refused("the host is an IPv4 address in an unusual form; write four decimal numbers")
    return Target(url.with_fragment(None), host.lower(), port)


def _canonical(host: str) -> bool:
    try:
        return str(ipaddress.IPv4Address(host)) == host
    except ValueError:
        return False


def _refused(message: str) -> WebhookRefused:
    return WebhookRefused(f"webhook: {message}", param="webhook.url")
