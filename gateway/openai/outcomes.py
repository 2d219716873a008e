"""What became of a line, as a line of the batch's output or error file. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.jobs import failure_of
from rewarm.errors import EngineBadResponse
from rewarm.files import LineError
from rewarm.jobs import Job, JobState

_dump = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Written:
    """``output`` or ``error`` is a line with its line feed, the other one is empty."""

    output: bytes = b""
    error: bytes = b""
    expired: bool = False
    input_tokens: int = 0
    output_tokens: int = 0


def of_job(batch: str, number: int, custom_id: str | None, job: Job, result: bytes | None, cut: str | None) -> Written:
    """``cut`` is why the batch as a whole was ended, if it was: ``cancelled`` or ``expired``."""
    body = one_line(result)
    if job.state is JobState.COMPLETED and body is not None:
        usage = job.usage or {}
        return Written(
            output=_line(batch, number, custom_id, _response(job, job.http_status or 200, body), None),
            input_tokens=_count(usage, "prompt_tokens", "input_tokens"),
            output_tokens=_count(usage, "completion_tokens", "output_tokens"),
        )
    if job.state is JobState.FAILED and body is not None and job.http_status:
        return Written(error=_line(batch, number, custom_id, _response(job, job.http_status, body), None))
    if cut is not None and job.state is JobState.CANCELLED:
        return ended_early(batch, number, custom_id, cut)
    if job.state is JobState.EXPIRED:
        return ended_early(batch, number, custom_id, "expired")
    failure = failure_of(job) or EngineBadResponse("the answer is no JSON, or is kept no longer")
    error = {"code": failure.code, "message": failure.message}
    return Written(error=_line(batch, number, custom_id, None, error))


def ended_early(batch: str, number: int, custom_id: str | None, cut: str) -> Written:
    """A line whose batch was over before it: never run, or not to its end."""
    if cut == "expired":
        error = {"code": "batch_expired", "message": "the batch's completion window ended before this line did"}
    else:
        error = {"code": "batch_cancelled", "message": "the batch was cancelled before this line ended"}
    return Written(error=_line(batch, number, custom_id, None, error), expired=cut == "expired")


def of_bad_line(batch: str, number: int, custom_id: str | None, error: LineError) -> Written:
    told = {"code": error.code, "message": error.message, "param": error.param, "line": error.line}
    return Written(error=_line(batch, number, custom_id, None, told))


def no_room(batch: str, number: int, custom_id: str | None) -> Written:
    told = {"code": "files_full", "message": "the answer did not fit into the bytes that this key's files may take"}
    return Written(error=_line(batch, number, custom_id, None, told))


def one_line(result: bytes | None) -> bytes | None:
    """JSON without a line feed in it; None for anything else."""
    if not result:
        return None
    try:
        # Also where there is no line feed: one bad answer must not make the whole file unreadable.
        return _dump(msgspec.json.decode(result))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _response(job: Job, status: int, body: bytes) -> dict[str, Any]:
    return {"status_code": status, "request_id": job.spec.id, "body": msgspec.Raw(body)}


def _line(
    batch: str, number: int, custom_id: str | None, response: dict[str, Any] | None, error: dict[str, Any] | None
) -> bytes:
    id_ = "batch_req_" + hashlib.sha256(f"{batch}\0{number}".encode()).hexdigest()[:24]
    return _dump({"id": id_, "custom_id": custom_id, "response": response, "error": error}) + b"\n"


def _count(usage: dict[str, Any], *names: str) -> int:
    for name in names:
        if isinstance(count := usage.get(name), int):
            return count
    return 0
