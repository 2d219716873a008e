"""What a gate answers, independent of the server it sits in: method, path and headers in; a slot or an answer out.

Order of the checks: the fleet's secret (TCP only), control routes (unix socket and token only), the list of inference
paths, then the ledger. Everything else is 404: an engine's admin routes (load, sleep, profile, metrics) are not
reachable.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from rewarm.errors import GateBusy, GateUnauthorized, InvalidJson, InvalidRequest, NotFound, RewarmError
from rewarm.ids import grant_id
from worker.gate.ledger import UNNAMED_BAND, Busy, Ledger
from worker.gate.rest import Resting, Sleeper
from worker.gate.timing import OnTimes, Times
from worker.report import GateState, Rest

CONTROL_PREFIX = "/.rewarm/"
CONTROL_HEADER = b"x-rewarm-control"
SECRET_HEADER = b"x-rewarm-secret"
GRANT_HEADER = b"x-rewarm-grant"
BAND_HEADER = b"x-rewarm-band"
BUSY_HEADER = b"x-rewarm-busy"
KEEP_ALIVE_HEADER = b"x-rewarm-keep-alive"
"""Seconds that the client wants the model kept for after its request; below 0: for ever."""
UNSEEN_HEADER = b"x-rewarm-unseen"
"""On an error of the gate's own: the engine has seen nothing of the request, so it cost nothing and may be repeated."""

INFERENCE_PATHS = frozenset(
    (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/rerank",
        "/v1/score",
        "/rerank",
        "/score",
        "/pooling",
        "/classify",
        "/tokenize",
        "/detokenize",
    )
)

_PRIVATE = (b"x-rewarm-", b"authorization")
_log = logging.getLogger("rewarm.worker.gate")


@dataclass(frozen=True, slots=True)
class Answer:
    """The gate's own response. ``headers`` names are lower case."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class Slot:
    """A taken slot; :meth:`free` gives it back, once however often it is called."""

    __slots__ = ("_gate", "_taken")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._taken = True

    def free(self) -> None:
        if self._taken:
            self._taken = False
            self._gate.finish()


class Pass:
    """The host's own request (warm-up, verification): neither counted nor limited, and no activity. While it is inside
    the engine does not fall asleep."""

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate: Gate | None = gate
        gate.passes += 1

    def free(self) -> None:
        if self._gate is not None:
            self._gate.passes -= 1
            self._gate = None


class Gate:
    """One per replica. All methods are called in one event loop's thread. Closed (draining) until :meth:`open`.

    ``on_change`` is called with the new state after every change; it must not block. ``secret`` is what callers over
    TCP must show: without one, nobody comes in over TCP. ``token`` authorises control requests, which only the unix
    socket takes.
    """

    def __init__(
        self,
        slots: int,
        *,
        token: str,
        secret: str = "",
        on_change: Callable[[GateState], None] = lambda state: None,
        on_times: OnTimes = lambda first, gaps: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = Ledger(slots, monotonic())
        self.times = Times(on_times, monotonic)
        self._ledger.drain()
        self._token = token.encode()
        self._secret = secret.encode()
        self._on_change = on_change
        self._now = monotonic
        self._expiry: asyncio.TimerHandle | None = None
        self._keep_alive_s: float | None = None
        self._resting = Resting(self._changed, monotonic)
        self.passes = 0  # requests of the host's own that are inside
        self.quiet = asyncio.Event()  # nothing runs, nothing is reserved
        self.quiet.set()

    @property
    def state(self) -> GateState:
        resting = self._resting
        return msgspec.structs.replace(
            self._ledger.state(self._now()),
            rest=resting.told,
            can_sleep=resting.can_sleep,
            no_sleep=resting.no_sleep,
            may_wake=resting.may_wake,
            wakes=resting.wakes,
            wake_began_s=resting.wake_began_s,
            wake_ended_s=resting.wake_ended_s,
            keep_alive_s=self._keep_alive_s,
        )

    # -- sleep

    def may_sleep(self, sleeper: Sleeper) -> asyncio.Future[str]:
        """The engine can sleep. The future gets the reason when it could not be woken."""
        return self._resting.enable(sleeper)

    def may_not_sleep(self, why: str) -> None:
        self._resting.disable(why)

    @property
    def is_awake(self) -> bool:
        return self._resting.state is Rest.AWAKE

    async def awake(self) -> None:
        """After a slot was given: until the engine can be asked."""
        await self._resting.awake()

    def open(self) -> None:
        """The replica is ready: let requests in. The idle clock starts here, never while loading."""
        self._ledger.undrain(self._now())
        self._changed()

    def enter(self, method: str, path: str, headers: Mapping[bytes, bytes], *, tcp: bool) -> Slot | Pass | Answer:
        """A data request: a slot, or the refusal to send. ``headers`` has lower-case names, the first of repeated
        ones."""
        if tcp and not self._knows_secret(headers):
            return error_answer(GateUnauthorized("this gate answers only callers that hold the fleet's secret"))
        if method != "POST" or path not in INFERENCE_PATHS:
            return error_answer(NotFound(f"{method} {path} is not served here"))
        if not tcp and self._knows_token(headers):
            return Pass(self)
        grant = headers.get(GRANT_HEADER)
        busy: Busy | None
        if grant is not None:
            busy = self._ledger.redeem(grant.decode("latin-1"), self._now())
        elif self._resting.barred:
            busy = Busy.ASLEEP
        else:
            busy = self._ledger.admit(_band(headers.get(BAND_HEADER)), self._now())
        if busy is not None:
            return _busy_answer(busy, self._ledger)
        if KEEP_ALIVE_HEADER in headers:
            self._keep_alive_s = _seconds(headers[KEEP_ALIVE_HEADER])
        self._resting.rouse()
        self._changed()
        return Slot(self)

    def is_control(self, path: str) -> bool:
        return path.startswith(CONTROL_PREFIX)

    def control(self, method: str, path: str, headers: Mapping[bytes, bytes], body: bytes, *, tcp: bool) -> Answer:
        """The agent's requests: reserve, release, state. To anybody else they do not exist."""
        if tcp or not self._knows_token(headers):
            return error_answer(NotFound(f"{method} {path} is not served here"))
        action = path.removeprefix(CONTROL_PREFIX)
        try:
            if method == "GET" and action == "state":
                return self._state_answer()
            fields = _object(body)
            if method == "POST" and action == "reserve":
                return self._reserve(fields)
            if method == "POST" and action == "release":
                return self._release(fields)
            if method == "POST" and action == "state":
                return self._set_state(fields)
            if method == "POST" and action == "sleep":
                return self._sleep(fields)
            if method == "POST" and action == "wake":
                self._resting.rouse()
                return self._state_answer()
        except RewarmError as error:
            return error_answer(error)
        return error_answer(NotFound(f"{method} {path} is not served here"))

    def finish(self) -> None:
        self._ledger.finish(self._now())
        self._changed()

    # -- control

    def _reserve(self, fields: dict[str, Any]) -> Answer:
        slots = fields.get("slots")
        if not isinstance(slots, int) or isinstance(slots, bool) or slots < 1:
            raise InvalidRequest("slots must be a whole number above 0", param="slots")
        wanted = [grant_id() for _ in range(min(slots, self._ledger.slots))]
        grants = self._ledger.reserve(wanted, self._now())
        self._changed()
        self._watch_expiry()
        return self._state_answer(grants=list(grants))

    def _release(self, fields: dict[str, Any]) -> Answer:
        grants = fields.get("grants")
        if not isinstance(grants, list) or not all(isinstance(grant, str) for grant in grants):
            raise InvalidRequest("grants must be a list of ids", param="grants")
        released = self._ledger.release(grants)
        self._changed()
        return self._state_answer(released=released)

    def _sleep(self, fields: dict[str, Any]) -> Answer:
        """Begin to fall asleep if nothing is inside. The answer's ``rest`` says whether it did; the reports, when it is
        done."""
        level, condition = fields.get("level"), fields.get("if_last_activity_s")
        if level not in (1, 2) or not isinstance(condition, float | int | None):
            raise InvalidRequest("level is 1 or 2, if_last_activity_s a number", param="level")
        if self._ledger.idle_since(condition) and not self._ledger.draining and not self.passes:
            self._resting.may_wake = bool(fields.get("may_wake"))
            self._resting.fall(level)
        return self._state_answer()

    def _set_state(self, fields: dict[str, Any]) -> Answer:
        if "may_wake" in fields:
            self._resting.may_wake = bool(fields["may_wake"])
        if "waiting_band" in fields:
            band = fields["waiting_band"]
            if band is not None and (not isinstance(band, int) or isinstance(band, bool)):
                raise InvalidRequest("waiting_band must be a whole number or null", param="waiting_band")
            self._ledger.waiting_band = band
        if "draining" in fields:
            condition = fields.get("if_last_activity_s")
            if not isinstance(fields["draining"], bool) or not isinstance(condition, float | int | None):
                raise InvalidRequest("draining is true or false, if_last_activity_s a number", param="draining")
            if fields["draining"]:
                self._ledger.drain(condition)
            else:
                self._ledger.undrain(self._now())
        self._changed()
        return self._state_answer()

    def _state_answer(self, **more: object) -> Answer:
        return _json_answer(200, {**msgspec.to_builtins(self.state), **more})

    # -- inside

    def _changed(self) -> None:
        state = self.state
        (self.quiet.set if state.quiet else self.quiet.clear)()
        self._on_change(state)

    def _watch_expiry(self) -> None:
        """A grant that nobody redeems frees its slot without any request coming by: the agent must hear of it."""
        due = self._ledger.next_expiry_s()
        if due is None or self._expiry is not None:
            return
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(max(0.0, due - self._now()) + 0.01, self._on_expiry)

    def _on_expiry(self) -> None:
        self._expiry = None
        if self._ledger.expire(self._now()):
            _log.info("event=grants-expired reserved=%d running=%d", self._ledger.reserved, self._ledger.running)
            self._changed()
        self._watch_expiry()

    def _knows_secret(self, headers: Mapping[bytes, bytes]) -> bool:
        return bool(self._secret) and hmac.compare_digest(headers.get(SECRET_HEADER, b""), self._secret)

    def _knows_token(self, headers: Mapping[bytes, bytes]) -> bool:
        return bool(self._token) and hmac.compare_digest(headers.get(CONTROL_HEADER, b""), self._token)


def is_private(name: bytes) -> bool:
    """Headers that stop at the gate: ours, and the client's credentials for the gateway."""
    return name.startswith(_PRIVATE)


def error_answer(error: RewarmError, *more: tuple[bytes, bytes]) -> Answer:
    extra = tuple((name.lower().encode(), value.encode()) for name, value in error.headers().items())
    return _json_answer(error.status, error.body(), *extra, *more)


def _busy_answer(busy: Busy, ledger: Ledger) -> Answer:
    say = {
        Busy.FULL: f"all {ledger.slots} slots are taken ({ledger.running} running, {ledger.reserved} reserved)",
        Busy.WAITING: f"requests of band {ledger.waiting_band} wait and come first",
        Busy.DRAINING: "the replica drains",
        Busy.ASLEEP: "the replica sleeps, and others have the memory that it needs",
        Busy.GRANT: "the grant is unknown, expired or was redeemed before",
    }[busy]
    return error_answer(GateBusy(say), (BUSY_HEADER, busy.value.encode()))


def _json_answer(status: int, body: object, *headers: tuple[bytes, bytes]) -> Answer:
    raw = json.dumps(body).encode()
    length = str(len(raw)).encode()
    return Answer(status, ((b"content-type", b"application/json"), (b"content-length", length), *headers), raw)


def _object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise InvalidJson(f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidJson("the body must be a JSON object")
    return fields


def _seconds(value: bytes) -> float | None:
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None


def _band(value: bytes | None) -> int:
    if value is None or not value.isdigit() or len(value) > 6:
        return UNNAMED_BAND
    return int(value)
