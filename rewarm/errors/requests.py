"""The client's request is at fault."""

from __future__ import annotations

from rewarm.errors.base import RewarmError


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
