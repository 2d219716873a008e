"""The heartbeat: what this worker can hold, and every replica it knows. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from rewarm.messages import DeviceReport, PoolReport, ReplicaReport, Want, WorkerBeat
from rewarm.states import ReplicaState
from worker.replica import Replica

_REACHABLE = (ReplicaState.READY, ReplicaState.ASLEEP, ReplicaState.DRAINING)


def report(replica: Replica, now_s: float, now_ms: int = 0) -> ReplicaReport:
    """``now_ms`` is the same moment in Redis time."""
    life, gate = replica.life, replica.gate
    served_once = gate is not None and replica.ready_at_ms > 0 and not life.ended
    return ReplicaReport(
        replica=replica.id,
        model=replica.model,
        spec_hash=replica.spec_hash,
        state=life.state,
        term=replica.want.term,
        attempt=replica.attempt,
        endpoint=replica.endpoint if life.state in _REACHABLE or (life.woken and life.loading) else None,
        slots=replica.want.spec.slots,
        in_flight=0 if gate is None or life.ended else gate.running,
        reserved=0 if gate is None or life.ended else gate.reserved,
        last_activity_ms=replica.last_activity_ms,
        ready_at_ms=replica.ready_at_ms,
        served=0 if gate is None else gate.served,
        memory_bytes=replica.memory_bytes,
        need_bytes=0 if life.gone else replica.need.total_bytes,
        needs={} if life.gone else dict(replica.needs),
        pid=None if life.gone else replica.pid,
        tier=replica.tier,
        weights=replica.weights,
        timings=tuple(replica.progress.timings),
        progress=replica.progress.snapshot(now_s, now_ms) if life.loading else None,
        failure=replica.failure,
        reason=life.reason,
        cause=replica.cause,
        tier_reason=replica.tier_reason,
        waits_for_room=replica.waits_for_room and not life.ended,
        can_sleep=served_once and gate is not None and gate.can_sleep,
        no_sleep=gate.no_sleep if served_once and gate is not None else "",
        keep_alive_s=None if gate is None else gate.keep_alive_s,
        eta_error=replica.progress.eta_error,
        trace=replica.trace,
        adapters=dict(replica.adapters) if served_once else {},
    )


def stopped(want: Want) -> ReplicaReport:
    """For a replica that does not exist here (an agent that restarted): it is as stopped as can be."""
    return ReplicaReport(
        replica=want.replica,
        model=want.model,
        spec_hash=want.spec_hash,
        state=ReplicaState.STOPPED,
        term=want.term,
        attempt=want.attempt,
        reason="not on this worker",
    )


def beat(
    worker: str,
    boot: str,
    host: str,
    pid: int,
    devices: tuple[DeviceReport, ...],
    replicas: Iterable[ReplicaReport],
    *,
    draining: bool,
    pools: Iterable[PoolReport] = (),
    only: str = "",
    since_ms: int = 0,
) -> WorkerBeat:
    return WorkerBeat(
        worker=worker,
        boot=boot,
        host=host,
        pid=pid,
        devices=devices,
        replicas=tuple(replicas),
        draining=draining,
        pools=tuple(pools),
        only=only,
        since_ms=since_ms,
    )
