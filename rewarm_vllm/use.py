"""What a host of vLLM asks for, without importing vLLM before it is asked."""

from __future__ import annotations

from typing import Any

from rewarm_vllm.job import CaptureJob
from rewarm_vllm.options import LoadOptions
from snapshots import Flavour, Manifest


def register() -> None:
    """As the plugin's entry point does, also where rewarm runs from its folder without being installed."""
    from rewarm_vllm.plugin import register

    register()


def settle(model: Any) -> None:
    """Wait until every digest of what ``model`` computes from has been compared, and what was wrong replaced."""
    from rewarm_vllm.kept import settle

    settle(model)


def why_not_mapped(vllm_config: Any) -> str:
    """Why a load for ``vllm_config`` would map no packed snapshot; empty: it would. Raise CheckpointError, OSError."""
    from rewarm_vllm.fingerprint import engine_fingerprint
    from rewarm_vllm.origin import origin_of

    config = vllm_config.model_config
    options = LoadOptions.parse(vllm_config.load_config.model_loader_extra_config)
    if not options.snapshots:
        return "snapshots are off for this model"
    origin = origin_of(config, options)
    try:
        if origin.model is None:
            return f"{config.model} is no folder of a checkpoint"
        found = origin.find(engine_fingerprint(origin.model, vllm_config, config), (Flavour.PACKED,))
    finally:
        origin.close()
    if found.lease is None:
        return "; ".join(found.reasons)
    found.lease.close()
    return ""


def let_go(model: Any) -> None:
    """See :func:`rewarm_vllm.forked.let_go`."""
    from rewarm_vllm.forked import let_go

    let_go(model)


def resume(model: Any, *, compared: bool) -> bool:
    """See :func:`rewarm_vllm.forked.resume`."""
    from rewarm_vllm.forked import resume

    return resume(model, compared=compared)


def why_weights_stay(model: Any) -> str:
    """See :func:`rewarm_vllm.dropping.why_weights_stay`."""
    from rewarm_vllm.dropping import why_weights_stay

    return why_weights_stay(model)


def drop_weights(model: Any, *, page_cache: bool) -> None:
    """See :func:`rewarm_vllm.dropping.drop_weights`."""
    from rewarm_vllm.dropping import drop_weights

    drop_weights(model, page_cache=page_cache)


def fetch_weights(model: Any) -> None:
    """See :func:`rewarm_vllm.dropping.fetch_weights`."""
    from rewarm_vllm.dropping import fetch_weights

    fetch_weights(model)


def lacks_snapshot(vllm_config: Any) -> Flavour | None:
    """The flavour that this engine would load from best, where no snapshot of it fits and one could be made of its
    checkpoint. One without a compile cache does not fit an engine that compiles, if it takes such caches."""
    from rewarm_vllm import compiled
    from rewarm_vllm.fingerprint import engine_fingerprint
    from rewarm_vllm.origin import origin_of

    config = vllm_config.model_config
    options = LoadOptions.parse(vllm_config.load_config.model_loader_extra_config)
    origin = origin_of(config, options)
    if origin.model is None or origin.checkpoint is None:
        return None
    flavour = compiled.best_flavour(vllm_config)
    found = origin.find(engine_fingerprint(origin.model, vllm_config, config), (flavour,))
    origin.close()
    if found.lease is None:
        return flavour
    with found.lease as lease:
        wants_cache = flavour is Flavour.SHARDED and options.caches and compiled.private_folder(vllm_config) is not None
        return flavour if wants_cache and not compiled.usable(lease, origin.store) else None


def capture(job: CaptureJob, vllm_config: Any) -> list[Manifest]:
    """See :func:`rewarm_vllm.engine.run`."""
    from rewarm_vllm.engine import run

    return run(job, vllm_config)
