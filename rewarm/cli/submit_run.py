"""The run of ``rewarm submit``: hand in lines, wait for their jobs, write the results in the input's order."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rewarm.cli.submit_client import Answer, JobsClient
from rewarm.cli.submit_file import BadLine, Input, Line
from rewarm.cli.submit_output import Output
from rewarm.errors import CommandRefused, LineRefused

_ENDED = frozenset(("completed", "failed", "cancelled", "expired"))
_LONG_S = 20  # a look at a job lasts this long, or until its end
_PAUSE_S = 0.5
_SHORT_S = 1  # at the one that a person is shown


@dataclass(frozen=True, slots=True)
class Options:
    endpoint: str
    priority: str | None
    name: str  # of the run
    in_flight: int  # requests at once, of either kind
    skip_bad: bool
    wait: bool


@dataclass
class Progress:
    """What a bar shows. ``job`` is the last look at the first job that has not ended."""

    lines: int = 0
    submitted: int = 0
    again: int = 0  # of these, known from an earlier run
    ended: int = 0
    job: dict[str, Any] = field(default_factory=dict)
    refused: list[BadLine] = field(default_factory=list)


class Run:
    """``progress`` changes as it goes on."""

    def __init__(self, client: JobsClient, given: Input, output: Output, options: Options, *, shown: bool) -> None:
        self._client = client
        self._input = given
        self._output = output
        self._options = options
        self._shown = shown
        self._ids: dict[int, asyncio.Future[str | BadLine]] = {}
        self._left: Iterator[Line] = iter(())
        self._file = given.open()
        self._stop = False
        self.progress = Progress(lines=len(given.lines))

    async def run(self) -> None:
        """Raise NothingRunning, or CommandRefused where the gateway takes none of it."""
        try:
            loop = asyncio.get_running_loop()
            self._ids = {line.number: loop.create_future() for line in self._input.lines}
            try:
                async with asyncio.TaskGroup() as group:
                    submitting = group.create_task(self._submit())
                    if self._options.wait:
                        await self._collect()
                    await submitting
            except* Exception as errors:  # noqa: BLE001 -- only taken out of its group
                raise _first(errors) from None
        finally:
            self._file.close()

    # --- handing in --------------------------------------------------------------------------------------------------

    async def _submit(self) -> None:
        self._left = iter(self._input.lines)
        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.in_flight):
                group.create_task(self._submit_lines())

    async def _submit_lines(self) -> None:
        for line in self._left:  # shared: each takes the next
            known = self._output.ids.get(line.number)
            if known is not None:
                self.progress.again += 1
                self._accepted(line, known)
            elif self._stop:
                self._ids[line.number].set_result(BadLine(line.number, "not submitted, since another line was refused"))
            else:
                await self._submit_line(line)

    async def _submit_line(self, line: Line) -> None:
        answer = await self._order(line)
        if answer.ok:
            self._accepted(line, self._accept(line, answer))
            return
        code, message = answer.error()
        _not_for_all(answer, code, message)
        refused = BadLine(line.number, f"{message} ({code})")
        self.progress.refused.append(refused)
        self._stop = not self._options.skip_bad
        self._ids[line.number].set_result(refused)

    async def _order(self, line: Line) -> Answer:
        """Again for the same line: the same job."""
        request = self._input.read(self._file, line, self._options.endpoint)
        metadata = {"line": str(line.number)}
        if line.custom_id is not None:
            metadata["custom_id"] = line.custom_id
        order: dict[str, Any] = {"endpoint": request.endpoint, "metadata": metadata, "body": msgspec.Raw(request.body)}
        if self._options.priority is not None:
            order["priority"] = self._options.priority
        key = idempotency_key(self._input.sha256, self._options.name, line.number)
        return await self._client.call("POST", "/v1/jobs", msgspec.json.encode(order), {"Idempotency-Key": key})

    def _accept(self, line: Line, answer: Answer) -> str:
        id_ = str(answer.json()["id"])
        self._output.accepted(line.number, id_)
        return id_

    def _accepted(self, line: Line, id_: str) -> None:
        self.progress.submitted += 1
        self._ids[line.number].set_result(id_)

    # --- results -----------------------------------------------------------------------------------------------------

    async def _collect(self) -> None:
        """Rows in order; so many jobs are watched at once, and their results held, as may be in flight."""
        bad = {line.number: line for line in self._input.bad}
        lines = {line.number: line for line in self._input.lines}
        numbers = sorted(lines.keys() | bad.keys())
        self._output.resume(numbers)
        self.progress.ended = sum(number in lines for number in numbers[: self._output.written])
        rest = iter(numbers[self._output.written :])
        ahead: deque[asyncio.Task[dict[str, Any]]] = deque()
        async with _tasks() as start:
            while True:
                while len(ahead) < self._options.in_flight:
                    number = next(rest, None)
                    if number is None:
                        break
                    line = lines.get(number)
                    ahead.append(start(_bad_row(bad[number]) if line is None else self._row(line, ahead)))
                if not ahead:
                    return
                self._output.write(await ahead[0])
                ahead.popleft()

    async def _row(self, line: Line, ahead: deque[asyncio.Task[dict[str, Any]]]) -> dict[str, Any]:
        id_ = await self._ids[line.number]
        if isinstance(id_, BadLine):
            return await _bad_row(id_, line.custom_id)
        me, lost = asyncio.current_task(), False
        while True:
            first = bool(ahead) and next((task for task in ahead if not task.done()), None) is me
            wait_s = _SHORT_S if self._shown and first else _LONG_S
            asked = time.monotonic()
            answer = await self._client.call("GET", f"/v1/jobs/{id_}", headers={"Prefer": f"wait={wait_s}"})
            if answer.status == 404 and not lost:
                # Redis came back without it, or its time was over. The key makes it the same job, or a new one.
                lost, answer = True, await self._order(line)
                id_ = self._accept(line, answer) if answer.ok else id_
                continue
            if not answer.ok:
                return self._ended(line, id_, "unknown", None, _error(answer))
            job = answer.json()
            if first:
                self.progress.job = job
            if job.get("status") in _ENDED:
                return await self._result(line, id_, job)
            if time.monotonic() - asked < _PAUSE_S:  # a gateway that stops does not wait
                await asyncio.sleep(_PAUSE_S)

    async def _result(self, line: Line, id_: str, job: dict[str, Any]) -> dict[str, Any]:
        status = str(job["status"])
        if status != "completed":
            error = job.get("error") or {"code": f"job_{status}", "message": f"the job is {status}"}
            return self._ended(line, id_, status, None, error)
        answer = await self._client.call("GET", f"/v1/jobs/{id_}/result")
        if answer.status in (404, 502):  # kept no longer, or no JSON
            return self._ended(line, id_, "unknown", None, _error(answer))
        return self._ended(line, id_, status, {"status_code": answer.status, "body": _body(answer.body)}, None)

    def _ended(self, line: Line, id_: str, status: str, response: Any, error: Any) -> dict[str, Any]:
        self.progress.ended += 1
        row = {"line": line.number, "custom_id": line.custom_id, "id": id_, "status": status}
        return {**row, "response": response, "error": error}


def idempotency_key(sha256: str, name: str, line: int) -> str:
    """The same for the same line of the same file in a run of the same name, and for nothing else."""
    return "submit-" + hashlib.sha256(f"{sha256}\n{name}\n{line}".encode()).hexdigest()


def _error(answer: Answer) -> dict[str, str]:
    """Raise CommandRefused."""
    code, message = answer.error()
    _not_for_all(answer, code, message)
    return {"code": code, "message": message}


def _not_for_all(answer: Answer, code: str, message: str) -> None:
    """Raise CommandRefused for what the next line would be told as well."""
    if answer.status in (401, 403) and code != "model_not_allowed":
        raise CommandRefused(f"{message} ({code})")
    if code == "idempotency_conflict":
        raise CommandRefused(
            "these lines were submitted before with another --endpoint or --priority: "
            "take the same ones to go on with that run, or another --run to begin a new one"
        )


async def _bad_row(bad: BadLine, custom_id: str | None = None) -> dict[str, Any]:
    row = {"line": bad.number, "custom_id": custom_id, "id": None, "status": "refused", "response": None}
    return {**row, "error": {"code": LineRefused.code, "message": bad.problem}}


def _body(data: bytes) -> Any:
    """The answer as it came, or as text where it is no JSON."""
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data.decode(errors="replace")
    return msgspec.Raw(data)


@asynccontextmanager
async def _tasks() -> AsyncIterator[Callable[[Any], asyncio.Task[dict[str, Any]]]]:
    """Tasks that end with the block; who awaits one gets its error as it is."""
    tasks: set[asyncio.Task[dict[str, Any]]] = set()

    def start(coroutine: Any) -> asyncio.Task[dict[str, Any]]:
        task: asyncio.Task[dict[str, Any]] = asyncio.ensure_future(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    try:
        yield start
    finally:
        left = list(tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    """The error that ended a group of tasks; the others were cancelled for it."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error
