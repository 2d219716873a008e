"""A gate's own answers, between gateway, agent and engine."""

from __future__ import annotations

from rewarm.errors.base import RewarmError


class GateBusy(RewarmError):
    code = "gate_busy"
    status = 503
    type = "overloaded_error"
    retry_after_s = 1
    advice = "The replica has no free slot, or drains; a gateway turns this into a ticket. Clients never see it."


class GateUnauthorized(RewarmError):
    code = "gate_unauthorized"
    status = 401
    type = "authentication_error"
    should_retry = False
    advice = "A gate on TCP answers only callers that hold the fleet's secret."
