"""The loop that carries batches out. Every gateway runs it; each batch has one gateway at a time, by lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fleet import Batches, Files, Step
from gateway.jobs import JobDesk
from gateway.keys import Keyring
from gateway.openai.carrying import Carrying
from gateway.openai.lease import Lease, LeaseLost
from gateway.openai.lines import CheckLine
from gateway.openai.validating import validate
from gateway.openai.window import Window
from gateway.view import View
from rewarm.errors import KeyLimitExceeded, ModelNotAllowed, ModelNotFound, QueueUnavailable, RewarmError
from rewarm.files import BATCH_ENDED, Batch, BatchSpec, BatchState, LineError, StoredFile

_log = logging.getLogger("rewarm.gateway.batches")

AT_ONCE = 8
"""Batches that one gateway works on; the others wait, or another gateway takes them."""

_BUSY_S = 0.05
_IDLE_S = 0.5
_SWEEP_EVERY_S = 30.0


class _Work:
    __slots__ = ("lease", "window")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.window: Window | None = None


class BatchRunner:
    def __init__(
        self,
        batches: Batches,
        files: Files,
        desk: JobDesk,
        view: View,
        keys: Keyring,
        owner: str,
        *,
        leaving: Callable[[], bool],
        output_factor: int = 2,
    ) -> None:
        self._batches = batches
        self._files = files
        self._desk = desk
        self._view = view
        self._keys = keys
        self._owner = owner
        self._leaving = leaving
        self._bound_bytes = output_factor * files.limits.max_bytes_tenant
        self._work: dict[str, _Work] = {}
        self._swept_at = float("-inf")

    async def run(self) -> None:
        """For ever. Raises QueueUnavailable, to be started again."""
        while True:
            busy = False
            # Before the first reading of the fleet every model would look unknown.
            if self._view.known and not self._leaving():
                busy = await self.tick()
            await asyncio.sleep(_BUSY_S if busy else _IDLE_S)

    async def tick(self) -> bool:
        """One round of each batch. True when something moved."""
        now = asyncio.get_running_loop().time()
        if now > self._swept_at + _SWEEP_EVERY_S:
            self._swept_at = now
            await self._files.sweep()
        if len(self._work) < AT_ONCE:
            for id_ in await self._batches.due(AT_ONCE - len(self._work)):
                self._work.setdefault(id_, _Work(Lease(self._batches, id_, self._owner)))
        busy = False
        for id_, work in list(self._work.items()):
            busy = await self._round(id_, work) or busy
        return busy

    async def _round(self, id_: str, work: _Work) -> bool:
        try:
            await work.lease.keep()
            batch = await self._batches.get(id_)
            if batch is None or batch.state in BATCH_ENDED:
                raise LeaseLost
            return await self._go_on(batch, work)
        except LeaseLost:
            del self._work[id_]
        except QueueUnavailable:
            raise
        except Exception:  # noqa: BLE001  # one broken batch must not stop the others; the lease lapses, then it is tried again
            _log.exception("batch=%s failed, to be tried again", id_)
            del self._work[id_]
        return False

    async def _go_on(self, batch: Batch, work: _Work) -> bool:
        spec = batch.spec
        file = await self._files.get(spec.input_file, spec.tenant)
        if file is None:
            gone = LineError(code="file_not_found", message="the input file is gone", param="input_file_id")
            return await self._end(batch, BatchState.FAILED, (gone,))
        if batch.state is BatchState.VALIDATING:
            return await self._validate(batch, file, work)
        if batch.state is BatchState.FINALIZING:
            return await self._end(batch, BatchState.EXPIRED if batch.expired else BatchState.COMPLETED)
        window = work.window
        if window is None or window.line != batch.line:
            window = work.window = Window(batch, file, self._files)
        cut = self._cut(batch)
        carrying = Carrying(
            self._batches, self._desk, self._view, self._owner, bound_bytes=self._bound_bytes, check=self._check(spec)
        )
        moved = await carrying.round(batch, window, work.lease, cut)
        if moved is None:
            work.window = None  # cancelled in between, or taken over: look again
            return True
        if not window.empty:
            return moved
        now = await self._batches.get(spec.id)
        if now is None or now.line != window.line:
            return True
        return await self._end(now, BatchState.CANCELLED if cut == "cancelled" else BatchState.FINALIZING)

    def _cut(self, batch: Batch) -> str | None:
        if batch.state is BatchState.CANCELLING:
            return "cancelled"
        return "expired" if self._view.now_ms() >= batch.spec.expires_ms else None

    async def _validate(self, batch: Batch, file: StoredFile, work: _Work) -> bool:
        spec = batch.spec
        limit = self._desk.config.max_body
        seen = await validate(spec, file, self._files, work.lease, max_body=limit, check=self._check(spec))
        errors = tuple(seen.errors)
        if seen.refused(skip=spec.invalid_lines == "skip"):
            return await self._end(batch, BatchState.FAILED, tuple(seen.errors))
        step = Step(BatchState.IN_PROGRESS, numbers={"total": seen.total}, errors=errors)
        await self._batches.step(batch, self._owner, step)
        return True

    async def _end(self, batch: Batch, state: BatchState, errors: tuple[LineError, ...] | None = None) -> bool:
        if await self._batches.step(batch, self._owner, Step(state, errors=errors)) == "ok":
            _log.info("batch=%s is %s", batch.spec.id, state.value)
        return True

    def _check(self, spec: BatchSpec) -> CheckLine:
        def check(model: str, body: bytes) -> RewarmError | None:
            entry = self._view.entry(model)
            if entry is None:
                return ModelNotFound(f"the model {model!r} does not exist")
            if spec.models is not None and set(spec.models).isdisjoint(entry.spec.served_names):
                return ModelNotAllowed(f"the key {spec.tenant!r} may not use the model {model!r}")
            limits = self._keys.limits_of(spec.tenant)
            try:
                if limits is not None:
                    limits.check(spec.endpoint, body)
            except KeyLimitExceeded as error:
                return error
            return None

        return check
