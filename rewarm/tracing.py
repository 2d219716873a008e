"""OpenTelemetry spans of requests and wakes, where `tracing.endpoint` is configured. Nothing is imported otherwise.

A request's span has children for the wait and the engine's time; the wake that it waited for hangs, with its phases,
below the one that it spent waiting. The engine is sent its context, so that its own spans hang below. A worker sends
each wake as a trace of its own, and requests that waited for it link to it. All are made from the same receipt that
clients see.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rewarm.config import TracingConfig
from rewarm.errors import TracingUnavailable
from rewarm.messages import Receipt, Wake

_NS = 1_000_000_000
_CLOSE_WITHIN_S = 3.0
_log = logging.getLogger("rewarm.tracing")

_CARRIED = ("traceparent", "tracestate")


class Tracing:
    """Spans of one process. ``exporter`` takes the place of the configured one in tests."""

    def __init__(self, config: TracingConfig, *, role: str, instance: str, exporter: Any = None) -> None:
        """Raise TracingUnavailable where the libraries are not installed."""
        try:
            from opentelemetry import trace
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise TracingUnavailable(f"`tracing` is configured, OpenTelemetry is not installed: {error}") from error
        self._api = trace
        self._propagator = TraceContextTextMapPropagator()
        about = {"service.name": config.service, "service.instance.id": instance, "rewarm.role": role}
        sampler = ParentBased(TraceIdRatioBased(config.sample))
        self._provider = TracerProvider(sampler=sampler, resource=Resource.create(about), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or _otlp(config)))
        self._tracer = self._provider.get_tracer("rewarm")

    def request(self, path: str, headers: Mapping[str, str]) -> RequestTrace:
        """A span that begins now, below the client's own where its headers carry one."""
        given = {name: headers[name] for name in _CARRIED if name in headers}
        context = self._propagator.extract(given) if given else None
        span = self._tracer.start_span(f"POST {path}", context, kind=self._api.SpanKind.SERVER)
        return RequestTrace(self, span)

    def wake(self, wake: Wake, ended_ns: int) -> str:
        """The spans of a wake that ended then; gives its ``traceparent``, or '' where it is not sampled."""
        span = self._wake(wake, ended_ns, None)
        sampled = span.get_span_context().trace_flags.sampled
        return self.context_of(span).get("traceparent", "") if sampled else ""

    def close(self) -> None:
        """Send what is left, for three seconds at most: a collector that is away must not hold up an end."""
        # A daemon: threads of an executor are waited for at the interpreter's exit, however long they take.
        closer = threading.Thread(target=self._provider.shutdown, name="tracing", daemon=True)
        closer.start()
        closer.join(_CLOSE_WITHIN_S)
        if closer.is_alive():
            _log.warning("the last spans could not be sent in %.0f s", _CLOSE_WITHIN_S)

    # --- for RequestTrace --------------------------------------------------------------------------------------------

    def context_of(self, span: Any) -> dict[str, str]:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._api.set_span_in_context(span))
        return carrier

    def child(self, parent: Any, name: str, began_ns: int, ended_ns: int, attributes: Mapping[str, Any]) -> Any:
        span = self._tracer.start_span(
            name,
            None if parent is None else self._api.set_span_in_context(parent),
            start_time=began_ns,
            attributes={key: value for key, value in attributes.items() if value not in (None, "")},
        )
        span.end(max(began_ns, ended_ns))
        return span

    def link(self, span: Any, traceparent: str) -> None:
        context = self._propagator.extract({"traceparent": traceparent})
        linked = self._api.get_current_span(context).get_span_context()
        if linked.is_valid:
            span.add_link(linked, {"rewarm.link": "wake"})

    def failed(self, words: str) -> Any:
        return self._api.Status(self._api.StatusCode.ERROR, words)

    def _wake(self, wake: Wake, ended_ns: int, parent: Any) -> Any:
        began_ns = ended_ns - int(wake.duration_s * _NS)
        span = self.child(parent, f"wake {wake.model}", began_ns, ended_ns, attributes_of(wake))
        origin_s = wake.timings[0].started_s if wake.timings else 0.0
        for timing in wake.timings:
            at_ns = began_ns + int((timing.started_s - origin_s) * _NS)
            attributes = {"rewarm.bytes": timing.bytes or None}
            self.child(span, timing.phase.value, at_ns, at_ns + int(timing.duration_s * _NS), attributes)
        return span

    def wake_below(self, parent: Any, wake: Wake, ended_ns: int) -> None:
        self._wake(wake, ended_ns, parent)


@contextmanager
def tracing_of(config: TracingConfig, role: str) -> Iterator[Tracing | None]:
    """For the life of a process: None where no endpoint is configured. Raise TracingUnavailable."""
    if config.endpoint is None:
        yield None
        return
    tracing = Tracing(config, role=role, instance=f"{socket.gethostname()}-{os.getpid()}")
    try:
        yield tracing
    finally:
        tracing.close()


class RequestTrace:
    """The span of one request, from its begin to its receipt."""

    __slots__ = ("_span", "_tracing", "headers")

    def __init__(self, tracing: Tracing, span: Any) -> None:
        self._tracing = tracing
        self._span = span
        self.headers = [(name.encode(), text.encode()) for name, text in tracing.context_of(span).items()]
        """What the engine is sent in place of the client's own."""

    def end(self, receipt: Receipt, wake_age_s: float = 0.0, *, ended_ns: int | None = None) -> None:
        """``ended_ns``: when the request ended, by default now; ``wake_age_s``: how long before that the wake did that
        it waited for."""
        span, tracing = self._span, self._tracing
        if not span.is_recording():
            return
        now_ns = ended_ns or time.time_ns()
        began_ns = now_ns - int(receipt.total_s * _NS)
        waited_ns = began_ns + int(receipt.waited_s * _NS)
        waits = span
        if receipt.replica is not None:
            who = {"rewarm.replica": receipt.replica, "rewarm.worker": receipt.worker}
            # Where a request went straight to a replica that slept, it waited in there.
            waits = tracing.child(
                span, "engine", waited_ns, now_ns, {**who, "rewarm.first_byte_s": receipt.first_byte_s}
            )
        if receipt.waited_s:
            waits = tracing.child(span, "queue", began_ns, waited_ns, {"rewarm.start": receipt.start})
        if receipt.wake is not None:
            tracing.wake_below(waits, receipt.wake, now_ns - int(wake_age_s * _NS))
            if receipt.wake.trace:
                tracing.link(span, receipt.wake.trace)
        for key, value in _of_a_request(receipt).items():
            if value is not None:
                span.set_attribute(key, value)
        if receipt.error is not None or receipt.state == "aborted":
            span.set_status(tracing.failed(receipt.error or "the client went away"))
        span.end(now_ns)


def attributes_of(wake: Wake) -> dict[str, Any]:
    return {
        "rewarm.model": wake.model,
        "rewarm.replica": wake.replica,
        "rewarm.worker": wake.worker,
        "rewarm.tier": wake.tier.value,
        "rewarm.tier_reason": wake.tier_reason,
        "rewarm.weights": wake.weights,
        "rewarm.bytes": wake.bytes or None,
        "rewarm.gb_per_s": wake.gb_per_s,
        "rewarm.cause": wake.cause,
        "rewarm.attempt": wake.attempt,
        "rewarm.eta_error": wake.eta_error,
    }


def _of_a_request(receipt: Receipt) -> dict[str, Any]:
    return {
        "rewarm.request": receipt.id,
        "rewarm.tenant": receipt.tenant,
        "rewarm.model": receipt.served_model,
        "gen_ai.request.model": receipt.model,
        "rewarm.start": receipt.start,
        "rewarm.tier": None if receipt.tier is None else receipt.tier.value,
        "rewarm.waited_s": receipt.waited_s,
        "rewarm.attempts": receipt.attempts,
        "http.response.status_code": receipt.status or None,
        "error.type": receipt.error,
    }


def _otlp(config: TracingConfig) -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise TracingUnavailable(f"`tracing` is configured, no OTLP exporter is installed: {error}") from error
    return OTLPSpanExporter(endpoint=config.traces_url, timeout=config.timeout.total_seconds())
