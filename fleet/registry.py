"""Workers and loads: what the machines say of themselves, and one reading of everything.

A worker lives until its deadline. Its last heartbeat is kept longer than that, so that after an outage of Redis (in
which nobody could speak) nothing looks dead before it had the time to: see *grace* in ``lua/_lib.lua``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from fleet import history
from fleet.client import Command, FleetClient
from fleet.queue import Queue
from fleet.scripts import ArgList
from fleet.view import FleetView
from rewarm.messages import (
    Canary,
    CatalogueEntry,
    Explanation,
    Message,
    ModelStatus,
    Progress,
    UnknownSchema,
    Want,
    WorkerBeat,
    decode,
    encode,
)
from rewarm.states import LOADING, Tier

BEAT_KEPT_MS = 24 * 3600 * 1000
LOAD_TTL_MS = 10 * 60 * 1000
"""Progress that nobody renewed for this long belongs to a replica that is gone."""

PULSE_GAP_MS = 2000
"""The same as GAP_MS in ``lua/_lib.lua``: without any sign of life for this long, nobody could reach Redis."""

_log = logging.getLogger("rewarm.fleet.registry")
_M = TypeVar("_M", bound=Message)


class Registry:
    def __init__(self, client: FleetClient) -> None:
        self._client = client
        self._keys = client.keys
        self._queue = Queue(client)
        self._told: set[str] = set()  # unreadable values that were logged already

    async def beat(self, beat: WorkerBeat, *, ttl_ms: int, ring: bool = False) -> bool:
        """``ring`` when a replica's state changed, so that gateways and leader look at once.

        False: a later run of a worker of this name speaks, and this one is not heard.
        """
        keys = [self._keys.workers, self._keys.worker(beat.worker), self._keys.pulse, self._keys.bell]
        arguments: ArgList = [beat.worker, ttl_ms, encode(beat), BEAT_KEPT_MS, int(ring), beat.boot, beat.since_ms]
        return int(await self._client.scripts.run("beat", keys, arguments)) >= 0

    async def leave(self, worker: str, boot: str) -> None:
        """The last thing a worker does. What it said last can still be read, as :attr:`FleetView.former`."""
        keys = [self._keys.workers, self._keys.worker(worker), self._keys.bell]
        await self._client.scripts.run("leave", keys, [worker, boot])

    async def load_progress(self, progress: Progress) -> None:
        """How far a load is, between two heartbeats. ``progress.replica`` must be set."""
        if progress.replica is None:
            raise ValueError("progress of a load names its replica")
        keys = [self._keys.load(progress.replica), self._keys.bell]
        arguments: ArgList = [encode(progress), LOAD_TTL_MS, progress.model]
        await self._client.scripts.run("load", keys, arguments)

    async def wants(self, worker: str) -> list[Want]:
        """What the leader wants of this worker, by replica."""
        fields = await self._client.call("HGETALL", self._keys.want(worker))
        return list(self._fields(fields, Want).values())

    async def catalogue(self) -> dict[str, CatalogueEntry]:
        """What the leader published last, by model."""
        return self._fields(await self._client.call("HGETALL", self._keys.catalogue), CatalogueEntry)

    async def history(self, worker: str) -> dict[history.PhaseKey, tuple[float, ...]]:
        """Durations in seconds by (model, tier, phase), oldest first, at most eight each."""
        return await history.read(self._client, worker)

    async def record_history(self, worker: str, model: str, tier: Tier | str, seconds: Mapping[str, float]) -> None:
        """What a load took, by phase."""
        await history.record(self._client, worker, model, tier, seconds)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def snapshot(self) -> FleetView:
        """Everything, in three round trips; not atomic, so a want may already be there whose effect is not."""
        k = self._keys
        answers = await self._client.pipeline(
            [
                ("TIME",),
                ("HGETALL", k.catalogue),
                ("ZRANGE", k.workers, 0, -1, "WITHSCORES"),
                ("SMEMBERS", k.wanted),
                ("HGETALL", k.status),
                ("HGETALL", k.explanations),
                ("HGETALL", k.demand),
                ("HMGET", k.leader, "owner", "term", "deadline"),
                ("ZRANGE", k.gateways, 0, -1, "WITHSCORES"),
                ("HMGET", k.pulse, "at", "grace"),
                ("HGETALL", k.absent),
                ("HGETALL", k.canaries),
                ("HGETALL", k.cordons),
            ]
        )
        time, catalogue, workers, wanted, statuses, explanations, demand, leader, gateways, *rest = answers
        pulse, absent, canaries, cordons = rest
        now_ms = int(time[0]) * 1000 + int(time[1]) // 1000 + self._client.scripts.clock_offset_ms
        grace = _grace(pulse, now_ms)
        deadlines = _pairs(workers)
        living = {name for name, deadline in deadlines if grace or deadline >= now_ms}
        known = sorted({name for name, _ in deadlines} | {name.decode() for name in wanted})
        entries = self._fields(catalogue, CatalogueEntry)
        beats, former, wants = await self._of_workers(known, living)
        owner, term, deadline = leader
        return FleetView(
            now_ms=now_ms,
            catalogue=entries,
            workers=beats,
            former=former,
            absent=self._fields(absent, WorkerBeat),
            progress=await self._progress(beats.values()),
            statuses=self._fields(statuses, ModelStatus),
            explanations=self._fields(explanations, Explanation),
            canaries=self._fields(canaries, Canary),
            cordons={name.decode(): boot.decode() for name, boot in cordons.items() if not name.startswith(b"@")},
            waiting=await self._queue.waiting(entries),
            demand_ms={name.decode(): int(float(at)) for name, at in demand.items() if not name.startswith(b"@")},
            wants=wants,
            term=int(term or 0),
            leader=owner.decode() if owner and float(deadline) >= now_ms else None,
            gateways=sum(1 for _, until in _pairs(gateways) if until > 0 and (grace or until >= now_ms)),
        )

    async def _of_workers(
        self, known: Sequence[str], living: set[str]
    ) -> tuple[dict[str, WorkerBeat], dict[str, WorkerBeat], dict[str, dict[str, Want]]]:
        commands: list[Command] = []
        for name in known:
            commands.append(("HMGET", self._keys.worker(name), "beat", "at", "former"))
            commands.append(("HGETALL", self._keys.want(name)))
        answers = await self._client.pipeline(commands)
        beats: dict[str, WorkerBeat] = {}
        former: dict[str, WorkerBeat] = {}
        wants: dict[str, dict[str, Want]] = {}
        for i, name in enumerate(known):
            (data, at, before), fields = answers[2 * i : 2 * i + 2]
            beat = self._read(data, WorkerBeat, name) if data is not None else None
            if beat is not None and name in living:
                beats[name] = msgspec.structs.replace(beat, at_ms=int(float(at)))
                beat = None
            wanted = self._fields(fields, Want)
            if not wanted:
                continue
            wants[name] = wanted
            alive = beats.get(name)
            if alive is None or any(want.boot != alive.boot for want in wanted.values()):
                last = beat or (self._read(before, WorkerBeat, name) if before is not None else None)
                if last is not None:
                    former[name] = last
        return beats, former, wants

    async def _progress(self, beats: Iterable[WorkerBeat]) -> dict[str, Progress]:
        """The later of what the heartbeat and what the load said. Only for replicas that load."""
        reports = [r for beat in beats for r in beat.replicas if r.state in LOADING]
        answers = await self._client.pipeline([("HGET", self._keys.load(r.replica), "p") for r in reports])
        out: dict[str, Progress] = {}
        for report, data in zip(reports, answers, strict=True):
            said = None if data is None else self._read(data, Progress, report.replica)
            candidates = [p for p in (report.progress, said) if p is not None]
            if candidates:
                out[report.replica] = max(candidates, key=lambda p: (p.attempt, p.seq))
        return out

    def _fields(self, fields: dict[bytes, bytes], kind: type[_M]) -> dict[str, _M]:
        out: dict[str, _M] = {}
        for raw, data in fields.items():
            name = raw.decode()
            if name.startswith("@"):
                continue
            value = self._read(data, kind, name)
            if value is not None:
                out[name] = value
        return out

    def _read(self, data: bytes, kind: type[_M], name: str) -> _M | None:
        """A value of another version's process is skipped, and said once: one old worker must not blind the fleet."""
        try:
            return decode(data, kind)
        except UnknownSchema as error:
            key = f"{kind.__name__} {name}: {error}"
            if key not in self._told:
                self._told.add(key)
                _log.error("unreadable value skipped kind=%s name=%s error=%s", kind.__name__, name, error)
            return None


def _grace(pulse: Sequence[bytes | None], now_ms: int) -> bool:
    at, until = pulse
    return at is not None and (now_ms - float(at) > PULSE_GAP_MS or now_ms < float(until or 0))


def _pairs(members: Sequence[Any]) -> list[tuple[str, float]]:
    """``ZRANGE … WITHSCORES`` as redis-py gives it, flat or as pairs by version."""
    if members and not isinstance(members[0], tuple | list):
        members = list(zip(members[::2], members[1::2], strict=True))
    return [(name.decode(), float(score)) for name, score in members]
