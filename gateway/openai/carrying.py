"""One round of work on one batch: its lines are handed in as jobs, looked at, and written out in order.

Of a batch only the cursor is kept: so many lines of the input have their results in the output files. Everything else
is found out again by whoever comes next. The lines behind the cursor each have a job of a derived id; those that are
there are left alone, those that are missing are handed in, and results are written from the front. So a gateway may die
between any two commands, and no line runs twice or is lost.
"""

from __future__ import annotations

from typing import Any

from fleet import Batches, Step
from gateway.jobs import JobDesk
from gateway.openai.lease import Lease
from gateway.openai.lines import Bad, CheckLine, Line
from gateway.openai.outcomes import Written, ended_early, no_room, of_bad_line, of_job
from gateway.openai.window import Place, Window
from gateway.view import View
from rewarm.errors import JobsFull, RewarmError
from rewarm.files import Batch, BatchSpec, LineError
from rewarm.jobs import Job, JobSpec, JobState
from rewarm.messages import CatalogueEntry

_LOOK_AT = 200  # jobs in one reading
_HAND_IN = 100  # lines in one round: other batches have their turn in between
_WRITE_LINES = 200
_WRITE_BYTES = 1 << 20


class Carrying:
    """``cut`` is why the batch is ended before its time: ``cancelled``, ``expired``, or None."""

    def __init__(
        self, batches: Batches, desk: JobDesk, view: View, owner: str, *, bound_bytes: int, check: CheckLine
    ) -> None:
        self._batches = batches
        self._desk = desk
        self._view = view
        self._owner = owner
        self._bound_bytes = bound_bytes
        self._check = check

    async def round(self, batch: Batch, window: Window, lease: Lease, cut: str | None) -> bool | None:
        """True when something moved, None when somebody else did. Raise LeaseLost, QueueUnavailable."""
        await window.fill(self._desk.config.max_body, self._check)
        await self._look([place for place in window if not place.known and isinstance(place.line, Line)])
        await self._look(window.unfinished(_LOOK_AT))
        if cut is None:
            moved = await self._hand_in(batch.spec, window, lease)
        else:
            moved = await self._call_off(window, lease)
        written = await self._write(batch, window, cut)
        return None if written is None else written or moved

    async def _look(self, places: list[Place]) -> None:
        for start in range(0, len(places), _LOOK_AT):
            some = places[start : start + _LOOK_AT]
            jobs = await self._desk.jobs.get_many([place.id for place in some], positions=False)
            for place, job in zip(some, jobs, strict=True):
                place.job, place.known = job, True  # None: never handed in, or Redis lost it

    async def _hand_in(self, spec: BatchSpec, window: Window, lease: Lease) -> bool:
        """In the order of the lines, as far as there is room for them."""
        missing = [place for place in window if place.job is None and isinstance(place.line, Line)][:_HAND_IN]
        for n, place in enumerate(missing):
            await lease.keep()
            line = place.line
            if not isinstance(line, Line):
                continue
            entry = self._view.entry(line.model)
            if entry is None:  # removed since the line was read
                told = RewarmError(f"the model {line.model!r} does not exist")
                place.line = _refuse(line, self._check(line.model, line.body) or told)
                continue
            job = self._job(spec, line, place.id, entry)
            try:
                await self._desk.jobs.submit(job, line.body)
            except JobsFull:
                return n > 0  # the next round tries again; what ends meanwhile makes room
            except RewarmError as error:
                if error.status >= 500:
                    raise
                place.line = _refuse(line, error)
                continue
            place.job = Job(spec=job, state=JobState.QUEUED, created_ms=spec.created_ms)
        return bool(missing)

    def _job(self, spec: BatchSpec, line: Line, id_: str, entry: CatalogueEntry) -> JobSpec:
        config = self._desk.config
        fallback = self._desk.chains.of_line(spec.models, entry, spec.endpoint, line.body)
        return JobSpec(
            id=id_,
            tenant=spec.tenant,
            model=entry.model,
            asked_model=line.model,
            path=spec.endpoint,
            kind="batch",
            priority=spec.priority,
            band=spec.band,
            weight=spec.weight,
            start_deadline_ms=spec.expires_ms,
            max_attempts=config.max_attempts,
            max_loads=config.max_loads,
            max_run_s=config.max_run.total_seconds(),
            retention_s=int(config.retention.total_seconds()),
            batch=spec.id,
            custom_id=line.custom_id,
            fallback=fallback,
            homes=self._view.homes((entry.model, *fallback)),
        )

    async def _call_off(self, window: Window, lease: Lease) -> bool:
        running = [place for place in window if place.job is not None and not place.ended and not place.cancelled]
        for place in running[:_HAND_IN]:
            await lease.keep()
            if place.job is not None:
                await self._desk.jobs.cancel(place.id, place.job.spec.tenant)
                place.cancelled = True
        return bool(running)

    # --- writing ---------------------------------------------------------------------------------------------------

    async def _write(self, batch: Batch, window: Window, cut: str | None) -> bool | None:
        """The results of the first lines, as far as they have ended without a gap, in one step."""
        lines: list[tuple[Place, Written]] = []
        size = 0
        for place in window:
            if len(lines) >= _WRITE_LINES or size >= _WRITE_BYTES:
                break
            written = await self._outcome(batch.spec, place, cut)
            if written is None:
                break
            size += len(written.output) + len(written.error)
            lines.append((place, written))
        step = self._step(batch, window, lines)
        if step is None:
            return False
        outcome = await self._batches.step(batch, self._owner, step)
        if outcome == "full":
            lines = [(place, _without_answer(batch.spec.id, place, written)) for place, written in lines]
            step = self._step(batch, window, lines, bound=False)
            outcome = "ok" if step is None else await self._batches.step(batch, self._owner, step)
        if outcome != "ok":
            return None
        if lines:
            for place in window.drop(len(lines)):
                if place.job is not None:  # its result lies in the output file: give its bytes back
                    await self._desk.jobs.delete(place.id, batch.spec.tenant)
        return bool(lines)

    async def _outcome(self, spec: BatchSpec, place: Place, cut: str | None) -> Written | None:
        """None while the line has not ended."""
        line = place.line
        if isinstance(line, Bad):
            return of_bad_line(spec.id, line.number, line.custom_id, line.error)
        if place.job is None:
            return None if cut is None else ended_early(spec.id, line.number, line.custom_id, cut)
        if not place.ended:
            return None
        result = await self._desk.jobs.result(place.id)
        return of_job(spec.id, line.number, line.custom_id, place.job, result, cut)

    def _step(
        self, batch: Batch, window: Window, lines: list[tuple[Place, Written]], *, bound: bool = True
    ) -> Step | None:
        """None where nothing has changed."""
        well = sum(1 for _, written in lines if written.output)
        rest = list(window)[len(lines) :]
        numbers: dict[str, Any] = {
            "written_completed": batch.written_completed + well,
            "written_failed": batch.written_failed + len(lines) - well,
        }
        numbers["completed"] = numbers["written_completed"] + sum(1 for place in rest if _ended_well(place))
        numbers["failed"] = numbers["written_failed"] + sum(1 for p in rest if p.ended and not _ended_well(p))
        if not lines and numbers["completed"] == batch.completed and numbers["failed"] == batch.failed:
            return None
        if lines:
            numbers["line"], numbers["offset"] = lines[-1][0].line.number, lines[-1][0].line.end
            numbers["expired"] = batch.expired + sum(written.expired for _, written in lines)
            numbers["input_tokens"] = batch.input_tokens + sum(written.input_tokens for _, written in lines)
            numbers["output_tokens"] = batch.output_tokens + sum(written.output_tokens for _, written in lines)
        return Step(
            batch.state,
            b"".join(written.output for _, written in lines),
            b"".join(written.error for _, written in lines),
            numbers,
            bound_bytes=self._bound_bytes if bound else 0,
        )


def _ended_well(place: Place) -> bool:
    return place.job is not None and place.job.state is JobState.COMPLETED


def _refuse(line: Line, error: RewarmError) -> Bad:
    told = LineError(code=error.code, message=error.message, line=line.number, param=error.param)
    return Bad(line.number, line.end, told, line.custom_id)


def _without_answer(batch: str, place: Place, written: Written) -> Written:
    if written.output:
        return no_room(batch, place.line.number, place.line.custom_id)
    return written
