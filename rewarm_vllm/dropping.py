"""The pages under a model that computes from mapped weights: given back while nobody asks it anything."""

from __future__ import annotations

from typing import Any

from rewarm_vllm.kept import kept_by
from snapshots import Flavour


def why_weights_stay(model: Any) -> str:
    """Why giving them back would free nothing, or lose something; empty when it would not."""
    kept = kept_by(model)
    if kept is None:
        return "its weights are not mapped from a packed snapshot; the next start may find one"
    if kept.lease.manifest.flavour is not Flavour.PACKED:
        return f"its weights are converted copies of a {kept.lease.manifest.flavour.value} snapshot"
    written = kept.mapped.written_bytes()
    return f"the engine has written to {written} bytes of its mapped weights" if written else ""


def drop_weights(model: Any, *, page_cache: bool) -> None:
    """Raise RuntimeError, with everything in place, where :func:`why_weights_stay` has a reason."""
    why = why_weights_stay(model)
    kept = kept_by(model)
    if why or kept is None:
        raise RuntimeError(why)
    kept.mapped.drop(page_cache=page_cache)


def fetch_weights(model: Any) -> None:
    """All pages in again, in one call: one fault each would cost the first answer more."""
    kept = kept_by(model)
    if kept is not None:
        kept.mapped.fetch()
