"""A request to a model with replicas: by the hot path where one has room, else held until there is."""

from __future__ import annotations

import asyncio
import logging

from msgspec.structs import replace

from gateway.adapters import Elsewhere, check_served, refuse_broken
from gateway.calls import Call
from gateway.dispatch import Dispatcher
from gateway.drain import Drain
from gateway.engines import Engines, Refused
from gateway.failures import digest_of
from gateway.holding import Holding, patience_s
from gateway.http import Answer
from gateway.jobs import HandedOff
from gateway.metrics import Metrics
from gateway.reply import Reply
from gateway.standby import LOOK_EVERY_S, Late
from gateway.view import View
from gateway.waiting import Held, WaitingRoom
from rewarm.errors import (
    AdapterLoadFailed,
    EngineUnreachable,
    LoadTimeout,
    ModelLoadFailed,
    ModelLoading,
    ModelRemoved,
    QueueFull,
    QueueUnavailable,
    RewarmError,
    ShuttingDown,
)
from rewarm.errors import catalogue as error_classes
from rewarm.messages import Failure, Grant, Progress, Ticket, TicketFailed, to_json
from rewarm.states import NOT_BEGUN, ModelState, ReplicaState, Tier

_log = logging.getLogger("rewarm.gateway.replicas")

_ERRORS = {cls.code: cls for cls in error_classes()}

_MAX_TRIES = 3
"""Gates that may turn out to be gone before a request fails: a dying worker's grants must not cost it its place."""


class Replicas:
    def __init__(
        self,
        view: View,
        dispatcher: Dispatcher,
        engines: Engines,
        holding: Holding,
        room: WaitingRoom,
        hand_off: HandedOff,
        metrics: Metrics,
        drain: Drain,
    ) -> None:
        self._view = view
        self._dispatcher = dispatcher
        self._engines = engines
        self._holding = holding
        self._room = room
        self._hand_off = hand_off
        self._metrics = metrics
        self._drain = drain
        self._loop = asyncio.get_running_loop()

    async def answer(self, call: Call, reply: Reply) -> Answer:
        """Raise a RewarmError where there is none, Late where somebody else is to answer, ConnectionError where the
        client is gone."""
        while True:
            try:
                return await self._answer(call, reply)
            except Elsewhere:
                continue

    async def _answer(self, call: Call, reply: Reply) -> Answer:
        tried: frozenset[str] = frozenset()
        refuse_broken(self._view, call.entry)
        while (target := self._dispatcher.choose(call.entry.model, tried)) is not None:
            call.worker, call.tier, call.slept = target.worker, target.report.tier, None
            if target.report.state is ReplicaState.ASLEEP:  # it is still told of its load before
                call.start, call.tier, call.slept = "cold", Tier.ASLEEP, target.report
            outcome = await self._engines.attempt(call, reply, target.replica, target.endpoint)
            if not isinstance(outcome, Refused):
                return outcome
            if outcome.why == "waiting":  # others of our band wait: nobody overtakes them
                break
            tried |= {target.replica}
        return await self._hold(call, reply)

    async def _hold(self, call: Call, reply: Reply) -> Answer:
        """Wait for a grant and take it, until one works or the request must end."""
        entry = call.entry
        ready = self._view.state(entry.model) is ModelState.READY
        call.start = "queued" if ready else "cold"
        call.slept = None
        failure = self._view.failure(entry.model)
        if failure is not None and not ready:
            raise _load_failed(entry.model, failure)
        patience = patience_s(call.request.headers, self._holding.config)
        self._hand_off.wanted(call.request.headers)  # a wrong value is told before the wait, not after it
        if not self._view.available:
            raise QueueUnavailable(
                f"{entry.model!r} is not ready, and Redis is out of reach, so nothing can wait for it"
            )
        self._holding.admit(entry.model, len(call.body), entry.policy.max_waiting)
        held = Held(call, self._ticket(call))
        call.held_at = self._loop.time()
        call.state = "waiting"
        call.waker = held.wake
        keep_place = True
        try:
            deadline = call.started_at + patience
            await self._until_its_base_has_it(call, reply, held, deadline)
            await self._room.enter(held)
            while True:
                try:
                    grant = await self._granted(call, reply, held, deadline)
                except (ModelLoading, LoadTimeout, ShuttingDown) as error:
                    if call.standby is not None and call.standby.helps(error.code):
                        raise
                    raise await self._hand_off.instead(held, error) from None
                response = await self._take(call, reply, held, grant)
                if response is not None:
                    return response
        except QueueUnavailable:
            self._view.hint()
            keep_place = False
            raise
        except (QueueFull, ModelLoadFailed, AdapterLoadFailed, ModelRemoved, LoadTimeout, Late, Elsewhere):
            keep_place = False
            raise
        finally:
            call.waker = None
            self._waited(call)
            self._holding.release(entry.model, len(call.body))
            self._room.leave(held, keep_place=keep_place)

    def _ticket(self, call: Call) -> Ticket:
        caller = call.caller
        number, call.tickets = call.tickets, call.tickets + 1
        return Ticket(
            # A second one must not meet what is still said of the first.
            id=f"{call.id}.{number}" if number else call.id,
            model=call.entry.home,
            tenant=caller.tenant,
            gateway=self._room.gateway,
            band=caller.band,
            weight=caller.weight,
            bytes=len(call.body),
            again=None if number else digest_of(caller.tenant, call.path, call.body),
        )

    async def _until_its_base_has_it(self, call: Call, reply: Reply, held: Held, deadline: float) -> None:
        """Nothing of an adapter is queued while its base's replicas are of before it was configured: they would be
        granted it, again and again. Until one that has it is ready, or none is up any more."""
        while self._view.behind(call.entry):
            refuse_broken(self._view, call.entry)
            if self._drain.begun:
                raise ShuttingDown("this gateway is stopping; the model goes on loading")
            now = self._loop.time()
            progress = self._progress(held) or Progress(
                model=call.entry.home, message="its base was started without it"
            )
            if now >= deadline:
                raise self._patience_over(call, progress)
            if call.standby is not None and call.standby.waits_on:
                call.standby.look(progress.eta_s, deadline - now)
            await reply.sign(progress, "waiting")
            call.due = min(deadline, now + LOOK_EVERY_S, reply.due())
            await held.wait()

    async def _granted(self, call: Call, reply: Reply, held: Held, deadline: float) -> Grant:
        """Wait, and show progress. Raise what ends the wait: a failed ticket, patience, a drain."""
        while True:
            if held.events:
                event = held.events.pop(0)
                if isinstance(event, TicketFailed):
                    held.queued = False  # it has left the queue already
                    raise _ticket_failed(event, call.entry.model)
                return event
            if self._drain.begun:
                raise ShuttingDown("this gateway is stopping; the model goes on loading")
            now = self._loop.time()
            progress = self._progress(held)
            if now >= deadline:
                raise self._patience_over(call, progress)
            call.due = deadline
            if call.standby is not None and call.standby.waits_on:
                call.standby.look(None if progress is None else progress.eta_s, deadline - now)
                call.due = min(deadline, now + LOOK_EVERY_S)
            await reply.sign(progress, "waiting")
            call.due = min(call.due, reply.due())
            await held.wait()

    async def _take(self, call: Call, reply: Reply, held: Held, grant: Grant) -> Answer | None:
        """Take a grant to its gate. None: refused, and the request waits on."""
        if call.entry.base:
            await check_served(self._view, call.entry, grant.replica)
        call.state = "running"

        def accepted() -> None:
            self._waited(call)
            self._room.accepted(held, grant)

        outcome = await self._engines.attempt(call, reply, grant.replica, grant.endpoint, grant.grant, accepted)
        if not isinstance(outcome, Refused):
            return outcome
        call.state = "waiting"
        call.waker = held.wake
        call.requeues += 1
        _log.info("request=%s grant=%s refused: %s", call.id, grant.grant, outcome.why)
        if outcome.why == "unreachable" and call.requeues >= _MAX_TRIES:
            raise EngineUnreachable(f"{call.requeues} gates of {call.entry.model!r} did not answer")
        self._room.refused(held, grant)
        return None

    def _waited(self, call: Call) -> None:
        if call.held_at is not None:
            call.waited_s += self._loop.time() - call.held_at
            call.held_at = None
            self._metrics.wait.observe(call.waited_s, call.entry.model)

    # --- what the wait shows -------------------------------------------------------------------------------------

    def _progress(self, held: Held) -> Progress | None:
        progress = self._view.progress(held.ticket.model)
        if progress is None:
            if self._view.ready(held.ticket.model):
                return None
            progress = Progress(model=held.ticket.model)
        return _placed(progress, held.position)

    def _patience_over(self, call: Call, progress: Progress | None) -> RewarmError:
        model = call.entry.model
        limit_s = self._holding.config.max_patience.total_seconds()
        loading = {
            "phase": progress.phase.value if progress else "ready",
            "fraction": progress.fraction if progress else 1.0,
            "eta_s": progress.eta_s if progress else None,
            "queue_position": progress.queue_position if progress else None,
            "message": progress.message if progress else "",
        }
        if progress is not None and progress.eta_s is not None and progress.eta_s > limit_s:
            return LoadTimeout(
                f"{model!r} needs about {progress.eta_s:.0f} s more; no request may wait longer than {limit_s:.0f} s",
                extra={"loading": loading},
            )
        what = "is still loading" if progress is not None else "is busy"
        waited = self._loop.time() - call.started_at
        why = (
            f": {progress.message}" if progress is not None and progress.phase in NOT_BEGUN and progress.message else ""
        )
        return ModelLoading(f"{model!r} {what} after {waited:.0f} s{why}", extra={"loading": loading})


def _placed(progress: Progress, position: int | None) -> Progress:
    if progress.queue_position == position:
        return progress
    return replace(progress, queue_position=position)


def _load_failed(model: str, failure: Failure) -> ModelLoadFailed:
    message = f"{model!r} could not be loaded: {failure.message}"
    return ModelLoadFailed(message, extra=_why(failure, message))


def _ticket_failed(event: TicketFailed, model: str) -> RewarmError:
    cls = _ERRORS.get(event.code, ModelLoadFailed)
    message = event.message or f"{model!r} cannot be served"
    return cls(message, extra=_why(event.failure, message) if event.failure else None)


def _why(failure: Failure, message: str) -> dict[str, object]:
    told = to_json(failure)
    if failure.message in message:  # said already
        told.pop("message", None)
    told.pop("log_tail", None)  # may show the machine's paths: for the operator's `rewarm ps`, not for clients
    return {"reason": failure.reason.value, "failure": told}
