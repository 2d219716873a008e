"""A replica's door and the ledger of its slots: the same rules as ASGI middleware (vLLM) and as a small proxy
(``command``).

In: requests of gateways, each direct or with a grant; control requests of the agent. Out: the engine's answer
untouched, or an immediate refusal before the body is read; :class:`~worker.report.GateState` on every change.
"""

from worker.gate.asgi import GateMiddleware
from worker.gate.gate import Answer, Gate, Pass, Slot
from worker.gate.ledger import GRANT_EXPIRY_S, GRANT_MARGIN_S, Busy, Ledger
from worker.gate.listen import open_gate_sockets

__all__ = [
    "GRANT_EXPIRY_S",
    "GRANT_MARGIN_S",
    "Answer",
    "Busy",
    "Gate",
    "GateMiddleware",
    "Ledger",
    "Pass",
    "Slot",
    "open_gate_sockets",
]
