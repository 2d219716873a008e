"""What jobs are refused for, and how they end without a result."""

from __future__ import annotations

from rewarm.errors.base import RewarmError
from rewarm.errors.requests import BadRequest


class JobNotFound(RewarmError):
    code = "job_not_found"
    status = 404
    type = "invalid_request_error"
    should_retry = False
    advice = (
        "No job of this key has this id: another key's are not shown, and a job is forgotten with its result "
        "`jobs.retention` (7 days) after its end."
    )


class UnknownEndpoint(BadRequest):
    code = "unknown_endpoint"
    advice = "`endpoint` must be one of the paths that the message lists; it is /v1/chat/completions by default."


class IdempotencyConflict(RewarmError):
    code = "idempotency_conflict"
    status = 409
    type = "invalid_request_error"
    should_retry = False
    advice = "The Idempotency-Key was used for another request: send the same body again, or take a new key."


class JobBodyTooLarge(RewarmError):
    code = "job_body_too_large"
    status = 413
    type = "invalid_request_error"
    should_retry = False
    advice = "A job's body is over `jobs.max_body` (1 MiB by default, 8 MiB at most): it is kept in Redis."


class WebhookRefused(BadRequest):
    code = "webhook_refused"
    advice = "A webhook is an http(s) URL outside of private networks, unless `jobs.webhooks.allow_private` is set."


class ForeignEventId(BadRequest):
    code = "foreign_event_id"
    advice = "Last-Event-ID (or `after`) must be an id that this job's events gave; without it they start anew."


class JobNotFinished(RewarmError):
    code = "job_not_finished"
    status = 409
    type = "invalid_request_error"
    retry_after_s = 2
    advice = "The job waits or runs: there is no result yet. Its `status_url` says how far it is."


class JobsFull(RewarmError):
    """Too many jobs or bytes in all, or Redis is out of memory."""

    code = "jobs_full"
    status = 503
    type = "overloaded_error"
    retry_after_s = 8
    advice = "Jobs and their results take all the memory that `jobs.max_bytes` gives them, or all that Redis has."


class JobQuotaExceeded(JobsFull):
    """Too many jobs or bytes of one tenant."""

    code = "job_quota_exceeded"
    status = 429
    type = "rate_limit_error"
    advice = "This key has as many unfinished jobs, or as many bytes of jobs and results, as `jobs` allows a key."


class JobCancelled(RewarmError):
    code = "job_cancelled"
    status = 410
    type = "invalid_request_error"
    should_retry = False
    advice = "The job was cancelled, so it has no result; what it had written by then may still be in its events."


class JobExpired(RewarmError):
    code = "job_expired"
    status = 410
    type = "invalid_request_error"
    should_retry = False
    advice = "The job was not started within its `start_deadline_s`; submit it again with a later deadline, or none."


class JobAttemptsExhausted(RewarmError):
    code = "job_attempts_exhausted"
    status = 500
    should_retry = False
    advice = "Every attempt ended without an answer of the engine; the message has the last reason. See its log."


class EngineError(RewarmError):
    """Of a job whose engine answered with an error that has no code: status and message are the engine's."""

    code = "engine_error"
    status = 502
    should_retry = False
    advice = (
        "A job's engine answered with an error that has no code of its own. The message is the engine's, and so is "
        "the status, where it is one of an error."
    )


class JobTimeout(RewarmError):
    code = "job_timeout"
    status = 504
    should_retry = False
    advice = "An attempt ran for longer than `jobs.max_run` and was stopped."


class JobResultTooLarge(RewarmError):
    code = "job_result_too_large"
    status = 500
    should_retry = False
    advice = "The answer is over `jobs.max_result`; ask for fewer tokens, or raise the limit."
