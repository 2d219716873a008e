"""The HTTP/1.1 client that talks to engines and remote upstreams, and nothing else: one door, :class:`UpstreamPool`.

In comes an endpoint (``unix:/path.sock``, ``tcp:host:port`` or ``tls:host:port``), a request whose body is already in
memory, and out comes an :class:`UpstreamResponse` whose decoded body arrives piece by piece, with back-pressure. It is
ours, on asyncio.Protocol and httptools, because a general client does far more for each request than is needed here
(what the hot path costs: ``docs/benchmarks.md``), and because a gateway needs what they lack: to be woken while nothing
arrives (:meth:`UpstreamResponse.nudge`) without a timer or a task for each chunk.

Three errors come out, and they differ in what may be done about them: :class:`UpstreamUnreachable` (the engine saw
nothing of the request, or not all: another may be tried), :class:`UpstreamDied` (it may have begun: never try again
unseen), :class:`UpstreamProtocolError` (what came is not HTTP). :class:`UpstreamUntrusted`, an unreachable one, says
that a certificate is not valid. No redirects, no cookies, no decompression: bytes pass as they are.
"""

from rewarm.upstream.errors import (
    UpstreamDied,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamUnreachable,
    UpstreamUntrusted,
)
from rewarm.upstream.hop_by_hop import HOP_BY_HOP
from rewarm.upstream.pool import UpstreamPool
from rewarm.upstream.response import UpstreamResponse

__all__ = [
    "HOP_BY_HOP",
    "UpstreamDied",
    "UpstreamError",
    "UpstreamPool",
    "UpstreamProtocolError",
    "UpstreamResponse",
    "UpstreamUnreachable",
    "UpstreamUntrusted",
]
