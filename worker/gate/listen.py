"""The sockets a gate listens on: always a unix socket in the 0700 run folder, TCP beside it only when advertised."""

from __future__ import annotations

import os
import socket
from pathlib import Path

_BACKLOG = 2048


def open_gate_sockets(path: str, advertise: str | None) -> tuple[list[socket.socket], str]:
    """Bound, listening, non-blocking sockets and the endpoint that gateways are told.

    With ``advertise`` (a host name or address of this machine) a free TCP port on all addresses is opened too, and the
    endpoint is ``tcp:host:port``; the agent keeps using the unix socket.
    """
    Path(path).unlink(missing_ok=True)
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    mask = os.umask(0o177)
    try:
        local.bind(path)
    finally:
        os.umask(mask)
    local.listen(_BACKLOG)
    local.setblocking(False)
    if advertise is None:
        return [local], f"unix:{path}"
    family = socket.AF_INET6 if ":" in advertise else socket.AF_INET
    remote = socket.create_server(("", 0), backlog=_BACKLOG, family=family, dualstack_ipv6=family == socket.AF_INET6)
    remote.setblocking(False)
    host = f"[{advertise}]" if ":" in advertise else advertise
    return [local, remote], f"tcp:{host}:{remote.getsockname()[1]}"
