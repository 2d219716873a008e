"""A remote model's upstream failed."""

from __future__ import annotations

from rewarm.errors.base import RewarmError


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
