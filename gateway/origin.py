"""Who may post where no keys are configured: programs, and pages of this machine. Pure.

Such a gateway is on loopback, where any page in a browser of this machine can reach it. A page may post text or a form
anywhere without being asked, and with a name of its own that leads to 127.0.0.1 it may post anything; what it posts
would run, and a job would outlive the page. Browsers say on whose behalf they post, in ``Origin``; programs have no
reason to send one.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from gateway.http import Request
from rewarm.config import is_loopback
from rewarm.errors import OriginRefused

_READING = frozenset(("GET", "HEAD"))


def check_origin(request: Request) -> None:
    """Raise OriginRefused where a page of another machine asks for more than to read.

    JSON to a name of this machine is let through: a browser asks before it sends that, and is not answered, so that it
    comes from a program.
    """
    if request.method in _READING:
        return
    origin = request.headers.get("Origin")
    if origin is None or is_loopback(_host(origin)):
        return
    if request.content_type == "application/json" and is_loopback(_host(f"//{request.headers.get('Host', '')}")):
        return
    raise OriginRefused(f"{origin!r} may not post here: this gateway has no keys, and serves its own machine only")


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
