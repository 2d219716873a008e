"""A held request: its place in the queue, and how its wait ends."""

from __future__ import annotations

from rewarm.messages.codec import Message, decode
from rewarm.messages.loads import Failure


class Ticket(Message, frozen=True, kw_only=True):
    """A held request. Its body stays in the gateway that holds the connection."""

    id: str
    model: str
    tenant: str
    gateway: str  # boot id
    band: int  # 0 is served first
    weight: float = 1.0
    cost: float = 1.0
    bytes: int = 0
    again: str | None = None  # digest of (key, body): finds the place an abandoned request kept


class Grant(Message, frozen=True, kw_only=True, tag="grant"):
    """A reserved slot offered to a held request: redeem it at ``endpoint`` with the header ``X-Rewarm-Grant``."""

    ticket: str
    model: str
    replica: str
    endpoint: str
    grant: str
    expires_ms: int
    waited_ms: int = 0


class TicketFailed(Message, frozen=True, kw_only=True, tag="failed"):
    """The ticket left the queue without a grant: ``code`` is one of ``rewarm.errors``."""

    ticket: str
    code: str
    message: str
    failure: Failure | None = None


GatewayEvent = Grant | TicketFailed


def decode_gateway_event(data: bytes) -> GatewayEvent:
    return decode(data, GatewayEvent)  # type: ignore[arg-type]  # a union is no class
