"""What ``/metrics`` reads at the moment it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized

from gateway.calls import Calls
from gateway.dispatch import Dispatcher
from gateway.holding import Holding
from gateway.metrics import Metrics
from gateway.receipts import ReceiptBook
from gateway.view import View
from gateway.webhooks import Webhooks
from rewarm.config import ConfigState
from rewarm.messages import Canary, PoolReport
from rewarm.states import ReplicaState, Tier

Values = dict[tuple[str, ...], float]


def add_gauges(
    metrics: Metrics,
    view: View,
    calls: Calls,
    holding: Holding,
    dispatcher: Dispatcher,
    receipts: ReceiptBook,
    job_readers: Sized,
    webhooks: Webhooks,
    file: Callable[[], ConfigState],
) -> None:
    gauge = metrics.gauge
    gauge("rewarm_config_sound", "The configuration's file is what runs", (), lambda: {(): float(not file().problem)})
    gauge("rewarm_config_loaded_seconds", "When it was loaded", (), lambda: {(): file().loaded_at_ms / 1000})
    gauge("rewarm_config_reloads", "Times that it was read again, by result", ("result",), lambda: _reloads(file()))
    gauge(
        "rewarm_config_restart_needed",
        "Fields of it that differ from what runs until a restart",
        (),
        lambda: {(): float(len(file().restart))},
    )
    gauge("rewarm_in_flight", "Requests under way, by model and state", ("model", "state"), lambda: _in_flight(calls))
    gauge("rewarm_held_bytes", "Bytes of all bodies in memory", (), lambda: {(): float(holding.bytes)})
    gauge("rewarm_held", "Requests held", ("model",), lambda: {(m,): n for m, n in holding.models().items()})
    gauge("rewarm_replicas", "Replicas by model and state", ("model", "state"), lambda: _replicas(view))
    gauge("rewarm_jobs_waiting", "Jobs that wait, in the whole fleet", ("model",), lambda: _jobs_waiting(view))
    gauge("rewarm_job_readers", "Clients that wait for a job or follow one", (), lambda: {(): float(len(job_readers))})
    gauge("rewarm_webhook_tries", "Tries to tell a client of its job, by how they ended", ("result",), webhooks.tries)
    gauge(
        "rewarm_canary_passed",
        "Whether the last try to wake a cold model succeeded",
        ("model",),
        lambda: {(c.model,): float(c.state == "passed") for c in _canaries(view)},
    )
    gauge(
        "rewarm_canary_age_seconds",
        "Since that try",
        ("model",),
        lambda: {(c.model,): max(0, view.now_ms() - c.at_ms) / 1000 for c in _canaries(view)},
    )
    gauge("rewarm_redis_up", "Redis answered the last time", (), lambda: {(): float(view.available)})
    gauge(
        "rewarm_ejections",
        "Replicas taken out because their gate did not answer",
        (),
        lambda: {(): float(dispatcher.ejections)},
    )
    gauge("rewarm_pool_up", "Pools by what they are (1)", ("worker", "kind", "state"), lambda: _pool_states(view))
    gauge("rewarm_pool_memory_bytes", "Memory of pools", ("worker", "kind"), lambda: _pool_memory(view))
    gauge(
        "rewarm_pool_ready",
        "Processes that wait for a start, by model",
        ("worker", "kind", "model", "state"),
        lambda: _pool_ready(view),
    )
    gauge(
        "rewarm_pool_starts",
        "Starts of engines of a pool's kind since the worker runs, by whether they came from it",
        ("worker", "kind", "tier"),
        lambda: _pool_starts(view),
    )
    gauge("rewarm_pool_zygotes", "Times that a pool was made", ("worker", "kind"), lambda: _pool_zygotes(view))
    gauge(
        "rewarm_device_bytes",
        "Memory of workers' devices: budget, promised, used, others, free, total",
        ("worker", "device", "kind", "what"),
        lambda: _device_bytes(view),
    )
    gauge("rewarm_device_up", "Devices that answer", ("worker", "device", "kind"), lambda: _device_up(view))
    gauge("rewarm_receipts_dropped", "Receipts lost", (), lambda: {(): float(receipts.dropped)})


def _reloads(file: ConfigState) -> Values:
    return {("applied",): float(file.reloads), ("refused",): float(file.refused)}


def _canaries(view: View) -> list[Canary]:
    """Those that have told something."""
    return [canary for canary in view.fleet.canaries.values() if canary.state in ("passed", "failed")]


def _pools(view: View) -> Iterator[tuple[str, PoolReport]]:
    for beat in view.fleet.workers.values():
        for pool in beat.pools:
            yield beat.worker, pool


def _pool_states(view: View) -> Values:
    return {(worker, pool.kind, pool.state): 1.0 for worker, pool in _pools(view)}


def _pool_memory(view: View) -> Values:
    return {(worker, pool.kind): float(pool.memory_bytes) for worker, pool in _pools(view)}


def _pool_ready(view: View) -> Values:
    return {
        (worker, pool.kind, entry.model, entry.state): float(entry.ready)
        for worker, pool in _pools(view)
        for entry in pool.prepared
    }


def _pool_starts(view: View) -> Values:
    out: Values = {}
    for worker, pool in _pools(view):
        out[worker, pool.kind, Tier.POOLED.value] = float(pool.pooled)
        out[worker, pool.kind, Tier.COLD.value] = float(pool.plain)
    return out


def _pool_zygotes(view: View) -> Values:
    return {(worker, pool.kind): float(pool.zygotes) for worker, pool in _pools(view)}


def _device_bytes(view: View) -> Values:
    out: Values = {}
    for beat in view.fleet.workers.values():
        for device in beat.devices:
            sizes = {
                "total": device.total_bytes,
                "budget": device.budget_bytes,
                "promised": device.promised_bytes,
                "used": device.used_bytes,
                "others": device.others_bytes,
                "free": device.free_bytes,
            }
            out |= {(beat.worker, device.id, device.kind, what): float(size) for what, size in sizes.items()}
    return out


def _device_up(view: View) -> Values:
    return {
        (beat.worker, device.id, device.kind): float(device.state == "ok")
        for beat in view.fleet.workers.values()
        for device in beat.devices
    }


def _in_flight(calls: Calls) -> Values:
    out: Values = {}
    for call in calls:
        labels = (call.entry.model, call.state)
        out[labels] = out.get(labels, 0) + 1
    return out


def _jobs_waiting(view: View) -> Values:
    return {(model,): float(waiting.jobs) for model, waiting in view.fleet.waiting.items()}


def _replicas(view: View) -> Values:
    out: Values = {}
    for beat in view.fleet.workers.values():
        for report in beat.replicas:
            labels = (report.model, ReplicaState(report.state).value)
            out[labels] = out.get(labels, 0) + 1
    return out
