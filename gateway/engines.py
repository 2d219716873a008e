"""One attempt at one replica: send the request through its gate, hand the answer on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gateway.calls import Call
from gateway.dispatch import Dispatcher
from gateway.headers import to_engine
from gateway.http import Answer
from gateway.relay import relay
from gateway.reply import Reply
from gateway.silence import Silence
from gateway.view import View
from gateway.woken import Woken
from rewarm.errors import DrainDeadline, EngineBadResponse, RewarmError, WorkerDied
from rewarm.states import ReplicaState
from rewarm.upstream import UpstreamDied, UpstreamPool, UpstreamProtocolError, UpstreamResponse, UpstreamUnreachable
from rewarm.wakes import wake_of

_log = logging.getLogger("rewarm.gateway.engines")


@dataclass(frozen=True, slots=True)
class Refused:
    """The gate did not let the request in, and the engine has seen nothing of it. ``why`` is its ``X-Rewarm-Busy``."""

    why: str  # full | waiting | draining | asleep | grant | unreachable


class Engines:
    def __init__(
        self,
        pool: UpstreamPool,
        dispatcher: Dispatcher,
        view: View,
        woken: Woken,
        silence: Silence,
        secret: bytes | None,
    ) -> None:
        self._pool = pool
        self._dispatcher = dispatcher
        self._view = view
        self._woken = woken
        self._silence = silence
        self._secret = secret

    async def attempt(
        self,
        call: Call,
        reply: Reply,
        replica: str,
        endpoint: str,
        grant: str | None = None,
        accepted: Callable[[], None] | None = None,
    ) -> Answer | Refused:
        """Return the finished response, or why the gate refused. ``accepted`` is called once the gate has not refused.

        Raise a RewarmError where the engine failed, ConnectionError where the client is gone.
        """
        call.attempts += 1
        call.replica = replica
        self._dispatcher.enter(replica)
        answer: UpstreamResponse | None = None
        try:
            answer = await self._pool.open(
                endpoint, "POST", call.path, to_engine(call, endpoint, grant, self._secret), call.outgoing
            )
            await self._silence.head(call, reply, answer, accepted)
            if answer.status == 503 and (why := _told(answer, b"x-rewarm-busy")) is not None:
                return Refused(why)
            if answer.status == 502 and _told(answer, b"x-rewarm-unseen") is not None:
                # The gate lives, the engine behind it does not: another may be tried, nothing has been begun.
                _log.warning("request=%s replica=%s is behind its gate no more", call.id, replica)
                self._dispatcher.eject(replica)
                return Refused("unreachable")
            if accepted is not None:
                accepted()
            if call.start != "warm":
                await self._describe(call, replica)
            return await relay(call, reply, answer, self._silence.watch)
        except UpstreamUnreachable as error:
            _log.warning("request=%s replica=%s unreachable: %s", call.id, replica, error)
            self._dispatcher.eject(replica)
            return Refused("unreachable")
        except UpstreamDied as error:
            raise self._died(call, replica, error) from error
        except UpstreamProtocolError as error:
            raise EngineBadResponse(f"the engine of {call.entry.model!r} answered with {error}") from error
        finally:
            call.waker = None
            if answer is not None:
                answer.abort()
            self._dispatcher.leave(replica)

    async def _describe(self, call: Call, replica: str) -> None:
        """What the load cost, for headers, the chunk before the data, and the receipt.

        A grant may overtake the reading that shows its replica as ready; its worker told that first, so one more
        reading has it. The answer of a replica that the request woke itself may overtake its worker as well: then a
        later reading has it.
        """
        if call.slept is not None:
            if self._woken.expect(call) and self._view.available:
                await self._view.refresh()
            return
        worker, report = self._view.located(replica)
        if (report is None or report.state is not ReplicaState.READY) and self._view.available:
            await self._view.refresh()
            worker, report = self._view.located(replica)
        if report is not None:
            call.worker, call.tier = worker, report.tier
            if call.start == "cold" and report.state is ReplicaState.READY:
                call.wake = wake_of(worker, report)

    def _died(self, call: Call, replica: str, error: UpstreamDied) -> RewarmError:
        report = self._view.report(replica)
        _log.warning("request=%s replica=%s died: %s", call.id, replica, error)
        # Its worker hears of an engine's end a few milliseconds after its clients: the next one must not meet it too.
        self._dispatcher.eject(replica)
        if report is not None and report.state is ReplicaState.DRAINING:
            return DrainDeadline(f"the engine of {call.entry.model!r} was stopped while it drained")
        return WorkerDied(f"the engine of {call.entry.model!r} ended while it served the request")


def _told(answer: UpstreamResponse, header: bytes) -> str | None:
    for name, value in answer.headers:
        if name.lower() == header:
            return value.decode("latin-1")
    return None
