"""The fleet cannot serve the request now, or its engine failed."""

from __future__ import annotations

from rewarm.errors.base import RewarmError


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


class AdapterLoadFailed(RewarmError):
    """Of an adapter alone: its base and the other adapters of it are served."""

    code = "adapter_load_failed"
    status = 500
    should_retry = False
    advice = (
        "The adapter's folder is missing or damaged, or does not go with its base; the message says what. `rewarm "
        "check` finds most of it. Once it is right, stop the base (`rewarm drain BASE`): its next start loads it."
    )


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
    advice = "The engine answered with something that is not HTTP, or to a job with what is no JSON; see its log."


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
