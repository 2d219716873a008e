"""What was measured on the real thing (Knative serving@98e5ef9, Kubernetes 1.36), as numbers that the fakes keep to."""

from __future__ import annotations

from dataclasses import dataclass

RESPONSE_START_S = 300.0
TIMEOUT_S = 600.0
QUIET_S = 30.0
"""After the last new request, streams or not, queue-proxy lets the worker's SIGTERM through."""
WINDOW_S = 15.0
COLD_S = 1.3
"""What Knative itself adds to a cold start."""

QUEUED_PER_SLOT = 10
TIMEOUT_TEXT = b"request timeout"
ACTIVATOR_TIMEOUT_TEXT = b"activator request timeout"
QUEUE_FULL_TEXT = b"pending request queue full"


@dataclass(frozen=True, slots=True)
class Timings:
    """All of it times ``scale``; ``timeout_s`` and ``response_start_s`` are a Service's own."""

    scale: float = 1.0
    timeout: float = TIMEOUT_S
    response_start: float = RESPONSE_START_S
    window: float = WINDOW_S

    @property
    def timeout_s(self) -> float:
        """Of a request from its arrival at the activator, and the pod's grace period."""
        return self.timeout * self.scale

    @property
    def response_start_s(self) -> float:
        return self.response_start * self.scale

    @property
    def quiet_s(self) -> float:
        return QUIET_S * self.scale

    @property
    def window_s(self) -> float:
        return self.window * self.scale

    @property
    def cold_s(self) -> float:
        return COLD_S * self.scale
