"""What the agent and a process of the pool say to each other: one message a packet, with descriptors beside it.

Each process of the pool has a channel of its own, one end of a ``SOCK_SEQPACKET`` pair that the agent made. An end that
closes is the order to end: nothing of the pool outlives its agent.
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Sequence

import msgspec

LARGEST = 128 * 1024
"""Bytes of one message: a specification with its arguments, an environment."""

_MOST_DESCRIPTORS = 4


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First on a channel: the process is the agent's own child by now, dies with it and waits for an order."""

    pid: int


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    """Make a process like yourself. With it: the descriptor of its channel."""


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Do what can be done ahead for one model. ``host``: a host file without replica, sockets and secrets. ``whole``:
    the engine itself too, where its kind can build one ahead."""

    host: msgspec.Raw
    whole: bool = True


class Go(msgspec.Struct, frozen=True, tag="go"):
    """Be the host of ``host_file``. With it: the descriptor of the engine's log."""

    host_file: str
    replica: str
    environment: dict[str, str]
    proven: tuple[str, ...] = ()  # weights that an engine of this pool has answered rightly with


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The order is carried out; of :class:`Go`: it is about to be."""

    seconds: float = 0.0
    versions: dict[str, str] = {}
    in_parts: str = ""  # of Prepare: why not the whole that was asked for


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """It was not: why, for a person. ``shortage``: of processes or memory; it would be at another time."""

    why: str
    shortage: bool = False


Order = Fork | Prepare | Go
Answer = Hello | Done | Refused

_encoder = msgspec.json.Encoder()
orders: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends are closed on exec; pass one on by name."""
    kind = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
    return socket.socketpair(socket.AF_UNIX, kind)


def send(channel: socket.socket, message: Order | Answer, descriptors: Sequence[int] = ()) -> None:
    """Raise OSError when nobody listens any more, or the packet does not fit."""
    data = _encoder.encode(message)
    if descriptors:
        socket.send_fds(channel, [data], list(descriptors))
    else:
        channel.send(data)


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """One message and the descriptors beside it, closed on exec. Empty at the end of the channel. Raise OSError."""
    space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
    # Not socket.recv_fds: it leaves out that the descriptors should close on exec.
    data, ancillary, _, _ = channel.recvmsg(LARGEST, space, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return data, list(descriptors)


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
