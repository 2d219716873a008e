"""Carries a decision's actions out, in an order that survives the leader's death between any two of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from controller.actions import (
    Action,
    Cordon,
    Explain,
    FailWaiting,
    Forget,
    ForgetStatus,
    Keep,
    MoveJobs,
    Note,
    PublishCatalogue,
    Rest,
    SetCanary,
    SetStatus,
    Start,
    Stop,
    Uncordon,
    Unexplain,
)
from fleet import Jobs, Leader, Publisher, Queue
from rewarm.fallback import GONE, Switch, decide

log = logging.getLogger("rewarm.controller")

_ORDER: tuple[type[Action], ...] = (
    Note,
    PublishCatalogue,  # first: gateways stop to enqueue for a removed model before its queue fails
    Cordon,  # before its replicas stop: whoever leads next starts none of them there anew
    Uncordon,
    SetCanary,  # before its start: whoever leads next knows what that is for
    SetStatus,  # before its tickets fail: the clients' retries then meet the remembered failure
    Start,  # before the want it replaces is forgotten: its attempt number is the only record
    Keep,
    Stop,
    Rest,
    MoveJobs,  # before they are told of a failed load: with another model ahead it is none of theirs
    Explain,
    Unexplain,
    FailWaiting,
    ForgetStatus,
    Forget,
)


MOVED_AT_ONCE = 500
"""Jobs of a model that one round looks at: with a million that wait the leader still has its other work to do."""


class Effects:
    def __init__(self, publisher: Publisher, queue: Queue, jobs: Jobs, leader: Leader) -> None:
        self._publisher, self._queue, self._jobs, self._leader = publisher, queue, jobs, leader
        self._looked: dict[str, int] = {}  # model → how many of its waiting jobs were looked at, of those that stay

    async def carry_out(self, actions: Sequence[Action]) -> None:
        """Raise LostLeadership or QueueUnavailable; what was not done then is decided again from what Redis shows."""
        for action in sorted(actions, key=lambda a: _ORDER.index(type(a))):
            _say(action)
            await self._do(action)

    async def _do(self, action: Action) -> None:
        match action:
            case Start(want) | Keep(want) | Rest(want) | Stop(want):
                await self._publisher.want([want])
            case Forget(worker, replica):
                await self._publisher.unwant(worker, replica)
            case SetStatus(status):
                await self._publisher.status(status)
            case SetCanary(canary):
                await self._publisher.canary(canary)
            case Cordon(worker, boot):
                await self._publisher.cordon(worker, boot)
            case Uncordon(worker):
                await self._publisher.uncordon(worker)
            case ForgetStatus(model):
                await self._publisher.forget_status(model)
            case Explain(explanation):
                await self._publisher.explain(explanation)
            case Unexplain(model):
                await self._publisher.unexplain(model)
            case PublishCatalogue(entries):
                await self._publisher.catalogue(list(entries.values()))
            case MoveJobs():
                await self._move(action)
            case FailWaiting(model, code, message, failure, jobs):
                owner, term = self._leader.claim()
                failed = await self._queue.fail_all(model, code, message, failure, owner, term, jobs=jobs)
                level = logging.WARNING if failed else logging.DEBUG
                log.log(level, "failed waiting model=%s code=%s count=%d reason=%r", model, code, failed, message)
            case Note():
                pass

    async def _move(self, action: MoveJobs) -> None:
        """The next page of the model's jobs; the round after goes on behind those that stay."""
        model, start = action.model, self._looked.get(action.model, 0)
        jobs = await self._jobs.in_chain(model, start, MOVED_AT_ONCE)
        owner, term = self._leader.claim()
        moved = 0
        for job in jobs:
            if job is None:
                continue
            step = decide(job.chain, action.event, action.now_s, lambda link: action.outlooks.get(link, GONE))
            if isinstance(step, Switch) and await self._jobs.move(job, step.chain, step.reason, owner, term):
                moved += 1
                log.info(
                    "job moved job=%s from=%s to=%s reason=%s", job.spec.id, model, step.chain.current, step.reason
                )
        self._looked[model] = start + len(jobs) - moved if len(jobs) == MOVED_AT_ONCE else 0


def _say(action: Action) -> None:
    match action:
        case Start(want, reason) | Stop(want, reason) | Keep(want, reason) | Rest(want, reason):
            log.info(
                "%s model=%s replica=%s worker=%s attempt=%d reason=%r",
                type(action).__name__.lower(),
                want.model,
                want.replica,
                want.worker,
                want.attempt,
                reason,
            )
        case Forget(worker, replica, reason):
            log.info("forget replica=%s worker=%s reason=%r", replica, worker, reason)
        case FailWaiting() | MoveJobs():
            pass  # said when it is known how many waited
        case SetStatus(status, reason):
            places = " ".join(f"{place.worker}={place.failures}" for place in status.places)
            log.warning(
                "failure model=%s until_ms=%d failed_loads=%r reason=%r",
                *(status.model, status.failed_until_ms, places, reason),
            )
        case SetCanary(canary, reason):
            level = logging.WARNING if canary.state == "failed" else logging.INFO
            log.log(level, "canary %s model=%s reason=%r", canary.state, canary.model, reason)
        case Cordon(worker, boot, reason):
            log.info("cordon worker=%s boot=%s reason=%r", worker, boot, reason)
        case Uncordon(worker, reason):
            log.info("uncordon worker=%s reason=%r", worker, reason)
        case ForgetStatus(model, reason):
            log.info("failure forgotten model=%s reason=%r", model, reason)
        case Explain(explanation):
            log.info("waits model=%s worker=%s reason=%r", explanation.model, explanation.worker, explanation.text)
        case Unexplain(model):
            log.debug("waits no longer model=%s", model)
        case PublishCatalogue(entries, reason):
            log.info("catalogue models=%d reason=%r", len(entries), reason)
        case Note(subject, reason):
            log.info("note subject=%s reason=%r", subject, reason)
