"""``/v1/models``: which models exist and how each one is. Looking never wakes a model nor touches its idle clock."""

from __future__ import annotations

from typing import Any

from gateway.breakers import Breakers
from gateway.keys import Caller
from gateway.view import View
from rewarm.config import priority_name
from rewarm.errors import AdapterLoadFailed, ModelNotFound
from rewarm.messages import CatalogueEntry
from rewarm.states import ModelState


def list_models(view: View, breakers: Breakers, caller: Caller) -> dict[str, Any]:
    """OpenAI's list, aliases included: programs look for the name they will ask for."""
    shown = ((n, e) for n, e in sorted(view.entries().items()) if caller.may_use(e) and not e.policy.unlisted)
    data = [_describe(view, breakers, name, entry) for name, entry in shown]
    return {"object": "list", "data": data}


def get_model(view: View, breakers: Breakers, caller: Caller, name: str) -> dict[str, Any]:
    """Raise ModelNotFound, also for a model that the key may not use."""
    entry = view.entry(name)
    if entry is None or not caller.may_use(entry):
        raise ModelNotFound(f"the model {name!r} does not exist", param="model")
    return _describe(view, breakers, name, entry)


def _describe(view: View, breakers: Breakers, name: str, entry: CatalogueEntry) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": entry.created_s,
        "owned_by": "rewarm",
        "root": entry.model,
        "parent": entry.base or None,
        "rewarm": model_state(view, breakers, entry),
    }


def model_state(view: View, breakers: Breakers, entry: CatalogueEntry) -> dict[str, Any]:
    """``fraction`` and ``eta_s`` are of the load that is furthest; 1 and 0 when ready, 0 and null when cold."""
    state = view.state(entry.model)
    waiting = view.fleet.waiting.get(entry.home)
    explanation = view.fleet.explanations.get(entry.home)
    out: dict[str, Any] = {
        "state": state.value,
        "aliases": list(entry.aliases),
        "engine": entry.spec.engine,
        "adapter_of": entry.base or None,
        "phase": None,
        "fraction": 0.0,
        "eta_s": None,
        "waiting": waiting.count if waiting else 0,
        "jobs_waiting": waiting.jobs if waiting else 0,
        "replicas": len(view.fleet.replicas(entry.home)),
        "slots": entry.spec.slots,
        "fallback": list(entry.policy.fallback),
        "priority": priority_name(entry.policy.priority),
        "pinned": entry.policy.pinned,
        "waits_for": explanation.text if explanation is not None else None,
    }
    progress = view.progress(entry.model)
    if state is ModelState.READY:
        out["fraction"], out["eta_s"] = 1.0, 0.0
    elif progress is not None:
        out |= {
            "phase": progress.phase.value,
            "fraction": round(progress.fraction, 4),
            "eta_s": progress.eta_s,
            "bytes_done": progress.bytes_done,
            "bytes_total": progress.bytes_total,
            "attempt": progress.attempt,
        }
    breaker = breakers.told(entry.model)
    if breaker is not None:
        out["breaker"] = breaker
    canary = view.fleet.canaries.get(entry.home)
    if canary is not None:
        out["canary"] = {"state": canary.state, "at_ms": canary.at_ms, "message": canary.message}
    failure = view.failure(entry.model)
    if failure is not None:
        out["failure"] = {"reason": failure.reason.value, "message": failure.message, "phase": failure.phase.value}
    elif broken := view.broken(entry.model):
        out["failure"] = {"reason": AdapterLoadFailed.code, "message": broken, "phase": None}
    return out
