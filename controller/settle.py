"""What has happened to the replicas of a model since the last look: ended, failed, lost, returned, asked for again."""

from __future__ import annotations

from controller import ahead, breaker
from controller.actions import ForgetStatus, SetStatus
from controller.canary import failed_until_ms
from controller.capacity import leaves, on_worker
from controller.needs import reach
from controller.placement import place
from controller.residents import residents
from controller.retry import Kind, judge
from controller.round import Round
from controller.scaling import FRESH_DEMAND_MS, demanded
from controller.state import REVIVABLE, Pending, Replica, StopReason
from rewarm.messages import CatalogueEntry, Failure, ModelStatus
from rewarm.states import FailureReason, ReplicaState


def bury_unknown(round_: Round, model: str) -> None:
    """Ended and lost replicas of a model that is not in the catalogue."""
    for replica in round_.group(model):
        if replica.ended or (replica.lost and not round_.holding):
            round_.forget(replica, "the model was removed and this replica has ended")


def bury(round_: Round, entry: CatalogueEntry) -> None:
    """Remove the wants of what is no more; start what takes its place, or remember that the model fails."""
    for replica in round_.group(entry.model):
        if replica.want is None:
            continue
        if replica.ended:
            _ended(round_, entry, replica)
        elif replica.lost:
            if not round_.holding:
                _lost(round_, entry, replica, f"the worker {replica.worker} is gone")
        elif replica.beat is not None and replica.beat.draining:
            # Its agent drains it without being told; a want left behind would have it loaded again after the restart.
            round_.forget(replica, f"the worker {replica.worker} leaves")
        elif replica.orphaned:
            # A want alone would make the new agent load it again, and again.
            absent = replica.beat is not None and replica.beat.absent
            why = f"the pod of {replica.worker} is gone" if absent else f"the worker {replica.worker} has restarted"
            _lost(round_, entry, replica, why)
        elif replica.awaited:
            round_.bind(replica)


def forsake(round_: Round, entry: CatalogueEntry) -> None:
    """At election: drop a want of an earlier leader that nothing runs and nobody asks for.

    Otherwise a restart of the machine would load every model that was up when it went down.
    """
    asked_ms = round_.view.demand_ms.get(entry.model, 0)
    kept = entry.policy.min_replicas or entry.policy.min_asleep
    if kept or round_.waiting(entry.model) or asked_ms > round_.now_ms - FRESH_DEMAND_MS:
        return
    for replica in round_.group(entry.model):
        runs = replica.report is not None and replica.state is not ReplicaState.POD_PENDING
        if replica.want is not None and not runs and not replica.lost and not replica.stop_wanted:
            round_.forget(replica, "an earlier leader wanted it; nothing runs and nobody asks")


def reconsider(round_: Round, entry: CatalogueEntry) -> None:
    """Take back stops that were overtaken by a request, and adopt replicas that run without a want."""
    for replica in round_.group(entry.model):
        if replica.lost or replica.ended or replica.report is None or (replica.beat and replica.beat.draining):
            continue
        current = replica.spec_hash == entry.spec_hash
        room = len(round_.serving(entry.model)) < entry.policy.max_replicas
        if replica.want is None:
            if replica.asleep and current and room:
                round_.rest(replica, entry.policy, StopReason.REST, "adopted: it sleeps without a want", if_idle=True)
            elif replica.state is not ReplicaState.DRAINING and current and room:
                round_.keep(replica, "adopted: it runs without a want")
            continue
        if not replica.stop_wanted or not room:
            continue
        last = replica.want.if_last_activity_ms
        if (
            last is not None
            and (replica.ready or replica.asleep)
            and (replica.busy or replica.report.last_activity_ms != last)
        ):
            round_.keep(replica, "was used before it could stop")
        elif current and replica.want.reason in REVIVABLE and replica.state in (_READY, _ASLEEP, _DRAINING):
            why = demanded(round_, entry)
            if why:
                round_.keep(replica, f"stays: {why} while it was to stop")


def clear_status(round_: Round, entry: CatalogueEntry) -> None:
    """A failure is forgotten once a replica became ready after it, or a worker came where there was none."""
    status = round_.view.statuses.get(entry.model)
    if status is None:
        return
    if any(isinstance(a, ForgetStatus | SetStatus) and _about(a) == entry.model for a in round_.actions):
        return
    left, ready_at = status, 0
    for replica in round_.serving(entry.model):
        if replica.ready and replica.report is not None:
            ready_at = max(ready_at, replica.report.ready_at_ms)
            if replica.spec_hash == entry.spec_hash:
                left = breaker.ready(left, replica.worker, replica.report.ready_at_ms)
    why = "a replica became ready"
    if status.failure is not None and ready_at > status.failure.at_ms:
        left = ModelStatus(model=entry.model, places=left.places)
    elif status.failure is not None and _no_worker(status.failure) and not place(round_, entry).no_worker:
        why = "a worker is connected again"
        left = ModelStatus(model=entry.model, places=left.places)
    if left.failure is None and not left.places:
        round_.actions.append(ForgetStatus(entry.model, why))
    elif left != status:
        round_.set_status(left, why)


def fail(round_: Round, entry: CatalogueEntry, failure: Failure, attempts: int, reason: str) -> None:
    """Remember the failure for a while, and tell everybody who waits, unless another replica serves them.

    To jobs it is a failed load, unless none was tried: without any worker they just wait.
    """
    known = round_.status(entry.model)
    total = attempts + (known.attempts if known is not None else 0)
    until = failed_until_ms(round_, entry.model, round_.now_ms + int(entry.policy.failure_memory_s * 1000))
    places = known.places if known is not None else ()
    status = ModelStatus(model=entry.model, failed_until_ms=until, failure=failure, attempts=total, places=places)
    round_.set_status(status, reason)
    if not round_.serving(entry.model):
        message = f"the model {entry.model!r} could not be loaded: {failure.message}"
        round_.fail_waiting(entry.model, failure, message, jobs="keep" if _no_worker(failure) else "count")
    round_.owe(entry.model, None)
    round_.answered(entry.model)


def no_worker_failure(now_ms: int, message: str) -> Failure:
    return Failure(reason=FailureReason.AGENT_LOST, message=message, phase=ReplicaState.COLD, at_ms=now_ms)


def no_room_failure(now_ms: int, message: str) -> Failure:
    return Failure(reason=FailureReason.NO_ROOM, message=message, phase=ReplicaState.COLD, at_ms=now_ms)


def _no_worker(failure: Failure) -> bool:
    return failure.reason is FailureReason.AGENT_LOST and failure.phase is ReplicaState.COLD


def _ended(round_: Round, entry: CatalogueEntry, replica: Replica) -> None:
    report = replica.report
    failure = report.failure if report is not None else None
    if replica.stop_wanted or replica.state is ReplicaState.STOPPED or failure is None:
        round_.forget(replica, "it has stopped" if replica.state is ReplicaState.STOPPED else "it has ended")
    elif replica.spec_hash != entry.spec_hash:
        round_.forget(replica, f"it failed and its specification is old ({failure.reason.value}: {failure.message})")
    else:
        _decide_after(round_, entry, replica, failure, was_ready=replica.was_ready)


def _lost(round_: Round, entry: CatalogueEntry, replica: Replica, why: str) -> None:
    """Its agent ended with everything it ran. That says nothing of the model, unless it happens with every load."""
    nobody = not (round_.waiting(entry.model) or entry.policy.min_replicas or replica.ahead)
    if replica.stop_wanted or nobody or replica.spec_hash != entry.spec_hash:
        round_.forget(replica, why)
        return
    if replica.former is not None and replica.former.draining:
        round_.forget(replica, f"{why}; it had been stopped")
        return
    phase = ReplicaState.READY if replica.was_ready else ReplicaState.STARTING
    failure = Failure(
        reason=FailureReason.AGENT_LOST, message=why, phase=phase, attempt=replica.attempt, at_ms=round_.now_ms
    )
    _decide_after(round_, entry, replica, failure, was_ready=replica.was_ready, deaths=replica.deaths + 1)


def _decide_after(
    round_: Round, entry: CatalogueEntry, replica: Replica, failure: Failure, *, was_ready: bool, deaths: int = 0
) -> None:
    if replica.ahead and failure.reason is FailureReason.NO_ROOM:
        # Others hold it, and nobody leaves for this one: it comes back later.
        round_.forget(replica, failure.message)
        ahead.in_vain(round_, entry)
        return
    verdict = judge(
        failure,
        attempt=replica.attempt,
        was_ready=was_ready,
        waiting=round_.waiting(entry.model),
        policy=entry.policy,
        roomier=_roomier(round_, entry, replica),
        jitter=round_.jitter(replica.id),
        deaths=deaths,
        crowded=_crowded(round_, replica),
        elsewhere=_elsewhere(round_, entry, replica),
    )
    if was_ready and not round_.waiting(entry.model):
        ahead.in_vain(round_, entry)  # one that dies again and again is not loaded ahead as often
    if not was_ready:
        _remember_place(round_, entry, replica, _stamped(failure, replica.attempt, round_.now_ms))
    round_.forget(replica, verdict.reason)
    if verdict.kind is Kind.FAIL:
        fail(round_, entry, _stamped(failure, verdict.attempt, round_.now_ms), verdict.attempt, verdict.reason)
    elif verdict.kind is Kind.RETRY and len(round_.serving(entry.model)) < entry.policy.max_replicas:
        not_before = round_.now_ms + verdict.delay_ms if verdict.delay_ms else 0
        spot = place(round_, entry, avoid=frozenset((replica.worker,)))
        if spot.worker is not None:
            round_.start(
                entry,
                spot.worker,
                verdict.reason,
                needs=spot.needs,
                attempt=verdict.attempt,
                not_before_ms=not_before,
                deaths=verdict.deaths,
                ahead=replica.ahead,
            )
        elif replica.ahead:
            ahead.in_vain(round_, entry)
        else:
            pending = Pending(round_.now_ms, verdict.reason, verdict.attempt, not_before, deaths=verdict.deaths)
            round_.owe(entry.model, pending)


def _roomier(round_: Round, entry: CatalogueEntry, replica: Replica) -> bool:
    mine = reach(round_, entry, replica.beat) if replica.beat is not None else 0
    return any(reach(round_, entry, b) > mine and not b.draining for b in round_.view.workers.values())


def _remember_place(round_: Round, entry: CatalogueEntry, replica: Replica, failure: Failure) -> None:
    before = round_.status(entry.model)
    after = breaker.failed(
        before, entry.model, replica.worker, failure, entry.policy, round_.now_ms, round_.view.workers.keys()
    )
    if after.places and after != before:
        round_.set_status(after, f"a load failed on {replica.worker} ({failure.reason.value})")


def _elsewhere(round_: Round, entry: CatalogueEntry, replica: Replica) -> bool:
    """Another worker may load it: none of its breakers there is open."""
    shut = round_.shut(entry.model) | {replica.worker}
    return any(
        beat.worker not in shut and not beat.draining and beat.only in ("", entry.model)
        for beat in round_.view.workers.values()
    )


def _crowded(round_: Round, replica: Replica) -> bool:
    """Others of this fleet hold memory on its worker that they may give up."""
    if replica.beat is None:
        return False
    return any(not other.keeps for other in residents(round_, replica.beat, replica.model)) or any(
        leaves(other) for other in on_worker(round_, replica.worker) if other.id != replica.id
    )


def _stamped(failure: Failure, attempt: int, now_ms: int) -> Failure:
    return Failure(
        reason=failure.reason,
        message=failure.message,
        phase=failure.phase,
        attempt=attempt,
        at_ms=now_ms,
        exit_status=failure.exit_status,
        log_tail=failure.log_tail,
    )


def _about(action: ForgetStatus | SetStatus) -> str:
    return action.model if isinstance(action, ForgetStatus) else action.status.model


_READY, _ASLEEP, _DRAINING = ReplicaState.READY, ReplicaState.ASLEEP, ReplicaState.DRAINING
