"""Remote models: other people's APIs, each with a bound on what is under way there at once, and one attempt at it.

Nothing is tried twice here: whether somebody else answers is decided where the request is.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Mapping

from gateway.calls import Call
from gateway.drain import Drain
from gateway.holding import Holding, patience_s
from gateway.http import Answer
from gateway.relay import relay
from gateway.reply import Reply
from gateway.silence import Silence
from gateway.upstream_answer import RemoteStream, WholeAnswer, headers_of
from gateway.wakeup import Wakeup
from gateway.whole import read_whole
from rewarm import remote
from rewarm.errors import (
    ModelLoading,
    RemoteBadAnswer,
    RemoteFailed,
    RemoteUnreachable,
    RemoteUntrusted,
    RewarmError,
    ShuttingDown,
)
from rewarm.fallback import Outlook
from rewarm.messages import CatalogueEntry, RemoteSpec
from rewarm.states import Tier
from rewarm.upstream import (
    UpstreamDied,
    UpstreamPool,
    UpstreamProtocolError,
    UpstreamResponse,
    UpstreamUnreachable,
    UpstreamUntrusted,
)

_log = logging.getLogger("rewarm.gateway.remotes")

IDLE_S = 60.0
"""How long a connection is kept: most upstreams close it after a minute or more."""

_MAX_BYTES = 64 * 2**20  # of a plain answer


class Upstream:
    """One remote model's address, connections, and who is on the way there."""

    def __init__(self, spec: RemoteSpec) -> None:
        self.spec = spec
        self.address = remote.Address.of(spec.url)
        tls = ssl.create_default_context(cafile=spec.ca_file) if self.address.endpoint.startswith("tls:") else None
        self.pool = UpstreamPool(connect_timeout_s=spec.connect_timeout_s, idle_s=IDLE_S, tls=tls)
        self.running = 0
        self.waiting: deque[Wakeup] = deque()

    def enter(self) -> None:
        self.running += 1

    def leave(self) -> None:
        """The next who waits may look."""
        self.running -= 1
        if self.waiting:
            self.waiting[0].wake()


class Remotes:
    """``environ`` is where the keys are looked up, by the names that the configuration gives."""

    def __init__(self, holding: Holding, silence: Silence, drain: Drain, environ: Mapping[str, str]) -> None:
        self._holding = holding
        self._silence = silence
        self._drain = drain
        self._environ = environ
        self._upstreams: dict[str, Upstream] = {}
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        for upstream in self._upstreams.values():
            await upstream.pool.close()

    def in_flight(self) -> dict[tuple[str, ...], float]:
        return {(model,): float(upstream.running) for model, upstream in self._upstreams.items()}

    def outlook(self, entry: CatalogueEntry) -> Outlook:
        if entry.remote is None:
            raise ValueError(f"{entry.model} is not remote")
        if self._key(entry.remote) is None and entry.remote.key_env is not None:
            return Outlook(obstacle=f"the environment has no {entry.remote.key_env}")
        upstream = self._upstreams.get(entry.model)
        full = upstream is not None and (upstream.running >= entry.spec.slots or upstream.waiting)
        return Outlook(None if full else 0.0)

    async def answer(self, call: Call, reply: Reply) -> Answer:
        """Raise a RewarmError where the upstream failed, ConnectionError where the client is gone."""
        upstream = self._of(call.entry)
        await self._enter(call, reply, upstream)
        upstream.enter()
        try:
            return await self._attempt(call, reply, upstream)
        finally:
            call.waker = None
            upstream.leave()

    # --- the bound ----------------------------------------------------------------------------------------------

    async def _enter(self, call: Call, reply: Reply, upstream: Upstream) -> None:
        """Wait for one's turn, in the order of coming. Raise QueueFull, ModelLoading at the end of the patience."""
        entry = call.entry
        if upstream.running < entry.spec.slots and not upstream.waiting:
            return
        deadline = call.started_at + patience_s(call.request.headers, self._holding.config)
        self._holding.admit(entry.model, len(call.body), entry.policy.max_waiting)
        place = Wakeup()
        upstream.waiting.append(place)
        call.start, call.state, call.waker = "queued", "waiting", place.wake
        since = self._loop.time()
        try:
            while upstream.running >= entry.spec.slots or upstream.waiting[0] is not place:
                now = self._loop.time()
                if self._drain.begun:
                    raise ShuttingDown("this gateway is stopping")
                if now >= deadline:
                    raise ModelLoading(f"{entry.model!r} is busy after {now - call.started_at:.0f} s")
                if call.standby is not None:
                    call.standby.look(None, deadline - now)
                await reply.sign(None, "waiting")
                call.due = min(reply.due(), deadline)
                await place.wait()
        finally:
            call.waker = None
            call.waited_s += self._loop.time() - since
            first = upstream.waiting[0] is place
            upstream.waiting.remove(place)
            if first and upstream.waiting:
                upstream.waiting[0].wake()
            self._holding.release(entry.model, len(call.body))
        call.state = "running"

    # --- one attempt --------------------------------------------------------------------------------------------

    async def _attempt(self, call: Call, reply: Reply, upstream: Upstream) -> Answer:
        entry, spec = call.entry, upstream.spec
        call.attempts += 1
        call.tier = Tier.REMOTE
        headers = remote.headers(self._key(spec), stream=call.stream)
        body = remote.body_for(call.body, entry.spec.upstream_model or entry.model)
        answer: UpstreamResponse | None = None
        try:
            address = upstream.address
            answer = await upstream.pool.open(address.endpoint, "POST", address.target(call.path), headers, body)
            await self._silence.head(call, reply, answer)
            return await self._hand_on(call, reply, answer)
        except UpstreamUntrusted as error:
            raise RemoteUntrusted(f"the upstream of {entry.model!r} has no valid certificate: {error}") from error
        except UpstreamUnreachable as error:
            raise RemoteUnreachable(f"the upstream of {entry.model!r} takes no connection: {error}") from error
        except UpstreamDied as error:
            raise RemoteFailed(f"the upstream of {entry.model!r} broke off: {error}") from error
        except UpstreamProtocolError as error:
            raise RemoteBadAnswer(f"the upstream of {entry.model!r} answered with {error}") from error
        finally:
            if answer is not None:
                answer.abort()

    async def _hand_on(self, call: Call, reply: Reply, answer: UpstreamResponse) -> Answer:
        model, watch = call.entry.model, self._silence.watch
        headers = headers_of(answer)
        refused = remote.refusal(model, answer.status, headers)
        if refused is not None:
            raise refused
        if answer.status == 200 and call.stream:
            if not headers["content-type"].lower().startswith("text/event-stream"):
                raise RemoteBadAnswer(f"the upstream of {model!r} sends no stream where one was asked for")
            return await relay(call, reply, RemoteStream(answer, model, typed=call.typed), watch)

        def larger() -> RemoteFailed:
            return RemoteFailed(f"the upstream of {model!r} answered with more than {_MAX_BYTES} bytes")

        body = await read_whole(call, reply, answer, watch, _MAX_BYTES, larger)
        return await relay(call, reply, WholeAnswer(answer.status, body, model), watch)

    def _of(self, entry: CatalogueEntry) -> Upstream:
        """Made anew where its specification has changed; what runs at the old one runs on."""
        if entry.remote is None:
            raise ValueError(f"{entry.model} is not remote")
        upstream = self._upstreams.get(entry.model)
        if upstream is None or upstream.spec != entry.remote:
            try:
                upstream = self._upstreams[entry.model] = Upstream(entry.remote)
            except (OSError, ssl.SSLError) as error:
                raise _unusable(entry, error) from error
        return upstream

    def _key(self, spec: RemoteSpec) -> str | None:
        return (self._environ.get(spec.key_env, "").strip() or None) if spec.key_env is not None else None


def _unusable(entry: CatalogueEntry, error: Exception) -> RewarmError:
    _log.error("model=%s its ca_file cannot be used: %s", entry.model, error)
    return RemoteUntrusted(f"the certificates to trust for {entry.model!r} cannot be read: see `rewarm check`")
