"""Batches: the cursor through an input file, and whose turn it is to move it.

A batch that has not ended is in one ZSET by the time somebody must look at it. A gateway that claims it gets a lease
there; every step it makes is one script that names the owner, the step's number and the state it starts from. So a
gateway that was taken for dead writes nothing any more, a repeat of a step changes nothing, and whoever takes over
finds the cursor exactly behind the last line whose result is in the output files.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from fleet.client import FleetClient
from fleet.files import listed
from fleet.scripts import ArgList
from rewarm.errors import BatchesFull, StoredFileNotFound
from rewarm.files import BATCH_ENDED, Batch, BatchSpec, BatchState, LineError, StoredFile
from rewarm.messages import decode, encode

LEASE_MS = 10_000
"""Two gateways never work on one batch; when one dies, another goes on after so long."""

MAX_AT_WORK = 1000
MAX_WINDOW_MS = 7 * 86_400_000
_DAY_MS = 86_400_000

_NUMBERS = (
    "total",
    "completed",
    "failed",
    "line",
    "offset",
    "written_completed",
    "written_failed",
    "expired",
    "input_tokens",
    "output_tokens",
)
_ERRORS = msgspec.msgpack.Decoder(tuple[LineError, ...])


@dataclass(frozen=True, slots=True)
class Step:
    """What one step changes. ``output`` and ``error`` are appended to the batch's files; ``numbers`` are fields of
    :class:`rewarm.files.Batch`."""

    state: BatchState
    output: bytes = b""
    error: bytes = b""
    numbers: dict[str, int] = field(default_factory=dict)
    errors: tuple[LineError, ...] | None = None
    wait_ms: int = LEASE_MS
    bound_bytes: int = 0  # of all files of the tenant, for ``output`` and ``error``; 0: none


class Batches:
    """Every method may be repeated. Raises :class:`QueueUnavailable` where Redis is out of reach."""

    def __init__(self, client: FleetClient, *, retention_s: int = 30 * 86400) -> None:
        self._client = client
        self._keys = client.keys
        self._retention_ms = retention_s * 1000

    async def create(self, spec: BatchSpec) -> None:
        """Begin to validate. Raise :class:`StoredFileNotFound` or :class:`BatchesFull`."""
        keys = self._keys
        names = [keys.batch(spec.id), keys.batches_at_work, keys.batches(spec.tenant)]
        names += [keys.file(spec.input_file), keys.file_data(spec.input_file), keys.file_ends]
        if spec.expires_ms - spec.created_ms > MAX_WINDOW_MS:
            raise ValueError(f"{spec.id}: no completion window is longer than seven days")
        life_ms = spec.expires_ms - spec.created_ms + self._retention_ms + _DAY_MS
        arguments: ArgList = [spec.id, spec.tenant, encode(spec), spec.created_ms, life_ms, MAX_AT_WORK]
        arguments += [spec.input_file, self._retention_ms + MAX_WINDOW_MS + _DAY_MS]
        outcome = await self._client.scripts.run("batch_create", names, arguments)
        if outcome == b"FILE":
            raise StoredFileNotFound(f"there is no file {spec.input_file!r}", param="input_file_id")
        if outcome == b"FULL":
            raise BatchesFull(f"{MAX_AT_WORK} batches are under way already")

    async def get(self, id_: str) -> Batch | None:
        return (await self.get_many([id_]))[0]

    async def get_many(self, ids: list[str]) -> list[Batch | None]:
        rows = await self._client.pipeline([("HGETALL", self._keys.batch(id_)) for id_ in ids])
        return [_batch(row) for row in rows]

    async def page(self, tenant: str, *, after: str | None = None, limit: int = 20) -> list[Batch]:
        """Newest first; those after the batch ``after``."""
        ids = await listed(self._client, self._keys.batches(tenant), after, limit)
        return [batch for batch in await self.get_many(ids) if batch is not None]

    async def cancel(self, id_: str) -> bool:
        """False when it had ended. Its jobs are cancelled by whoever works on it."""
        names = [self._keys.batch(id_), self._keys.batches_at_work]
        return bool(await self._client.scripts.run("batch_cancel", names, [id_]))

    # --- whoever works on it -----------------------------------------------------------------------------------------

    async def due(self, limit: int = 8) -> list[str]:
        """Batches that nobody works on now, longest waiting first."""
        now = await self._client.time_ms()
        found = await self._client.call("ZRANGEBYSCORE", self._keys.batches_at_work, "-inf", now, "LIMIT", 0, limit)
        return [id_.decode() for id_ in found]

    async def claim(self, id_: str, owner: str) -> bool:
        """It is ``owner``'s for another :data:`LEASE_MS`. False: another one's, or ended."""
        names = [self._keys.batch(id_), self._keys.batches_at_work]
        return bool(await self._client.scripts.run("batch_claim", names, [id_, owner, LEASE_MS]))

    async def step(self, batch: Batch, owner: str, step: Step) -> Literal["ok", "lost", "full"]:
        """Go on from ``batch`` as it was read. "lost": it is another gateway's by now, or was cancelled; read again.
        "full": the pieces do not fit within ``bound_bytes``, and nothing has happened.

        Raise :class:`QueueUnavailable` also when Redis is out of memory: nothing has happened then.
        """
        keys, spec = self._keys, batch.spec
        out_id, err_id = output_id(spec.id), error_id(spec.id)
        names = [keys.batch(spec.id), keys.batches_at_work]
        names += [keys.file(out_id), keys.file_data(out_id), keys.file(err_id), keys.file_data(err_id)]
        names += [keys.file_accounts, keys.file_ends, keys.files(spec.tenant), keys.file(spec.input_file)]
        life_ms = spec.expires_ms - spec.created_ms + self._retention_ms
        fields: ArgList = []
        for name, value in step.numbers.items():
            fields += [name, value]
        if step.errors is not None:
            fields += ["errors", msgspec.msgpack.encode(step.errors)]
        if step.output or batch.output_file:
            fields += ["output_file", out_id]
        if step.error or batch.error_file:
            fields += ["error_file", err_id]
        arguments: ArgList = [spec.id, owner, batch.step + 1, batch.state.value, step.state.value, step.wait_ms]
        arguments += [spec.tenant, step.output, step.error]
        arguments += [out_id, _meta(spec, out_id, "output"), err_id, _meta(spec, err_id, "error")]
        arguments += [life_ms, self._retention_ms, int(step.state in BATCH_ENDED), step.bound_bytes, *fields]
        outcome = await self._client.scripts.run("batch_step", names, arguments)
        return "ok" if outcome == b"OK" else "full" if outcome == b"FULL" else "lost"


def output_id(batch: str) -> str:
    """Derived, so that whoever takes a batch over goes on writing to the same file."""
    return _derived("file-", batch, "output")


def error_id(batch: str) -> str:
    return _derived("file-", batch, "error")


def line_job_id(batch: str, line: int) -> str:
    """The id of the job of a line (1-based): submitting it again makes no second one."""
    return _derived("job_", batch, str(line))


def _derived(prefix: str, *parts: str) -> str:
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return prefix + digest[:26]


def _meta(spec: BatchSpec, id_: str, what: str) -> bytes:
    return encode(
        StoredFile(
            id=id_,
            tenant=spec.tenant,
            filename=f"{spec.id}_{what}.jsonl",
            purpose="batch_output",
            bytes=0,
            created_ms=spec.created_ms,
            expires_ms=spec.expires_ms,
        )
    )


def _batch(row: Any) -> Batch | None:
    fields: dict[bytes, bytes] = row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True))
    if b"spec" not in fields:
        return None
    output, error = fields.get(b"output_file"), fields.get(b"error_file")
    return Batch(
        spec=decode(fields[b"spec"], BatchSpec),
        state=BatchState(fields[b"state"].decode()),
        step=int(fields[b"step"]),
        times={name[2:].decode(): int(float(at)) for name, at in fields.items() if name.startswith(b"t:")},
        errors=_ERRORS.decode(fields[b"errors"]) if b"errors" in fields else (),
        output_file=output.decode() if output else None,
        error_file=error.decode() if error else None,
        **{name: int(fields.get(name.encode(), b"0")) for name in _NUMBERS},
    )
