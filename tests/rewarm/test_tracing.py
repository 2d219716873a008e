"""Spans of requests and wakes: what a collector gets, what an engine is sent, and that all of it is optional."""

from __future__ import annotations

import contextlib
import gzip
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rewarm.config import TracingConfig, parse
from rewarm.errors import ConfigInvalid
from rewarm.messages import PhaseTiming, Receipt, Wake
from rewarm.states import ReplicaState, Tier
from rewarm.tracing import Tracing, tracing_of

ROOT = Path(__file__).resolve().parents[2]
CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
WAKE = Wake(
    replica="m-1",
    worker="w",
    model="m",
    ready_at_ms=5000,
    tier=Tier.POOLED,
    weights="packed m@1",
    cause="1 waiting",
    duration_s=0.4,
    bytes=200,
    gb_per_s=2.0,
    timings=(
        PhaseTiming(phase=ReplicaState.STARTING, started_s=1.0, duration_s=0.3),
        PhaseTiming(phase=ReplicaState.RESTORING, started_s=1.3, duration_s=0.1, bytes=200),
    ),
)


def receipt(**fields: Any) -> Receipt:
    usual: dict[str, Any] = {
        "id": "req-1",
        "tenant": "alice",
        "model": "alias",
        "served_model": "m",
        "path": "/v1/chat/completions",
        "stream": False,
        "state": "completed",
        "start": "cold",
        "created_ms": 1,
        "replica": "m-1",
        "worker": "w",
        "status": 200,
        "waited_s": 1.0,
        "total_s": 1.5,
        "first_byte_s": 1.2,
        "wake": WAKE,
    }
    return Receipt(**{**usual, **fields})


class Collected:
    def __init__(self, sample: float = 1.0) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = Tracing(
            TracingConfig(endpoint="http://nowhere", sample=sample),
            role="gateway",
            instance="here",
            exporter=self.exporter,
        )

    def spans(self) -> dict[str, ReadableSpan]:
        self.tracing.close()
        return {span.name: span for span in self.exporter.get_finished_spans()}


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else int(span.parent.span_id)


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_a_request_that_waited_for_a_wake_is_one_trace_with_its_phases() -> None:
    collected = Collected()
    collected.tracing.request("/v1/chat/completions", {}).end(receipt(), wake_age_s=0.5)
    spans = collected.spans()
    root, queue, wake = spans["POST /v1/chat/completions"], spans["queue"], spans["wake m"]
    assert parent_of(root) is None
    assert {parent_of(queue), parent_of(spans["engine"])} == {id_of(root)}
    assert parent_of(wake) == id_of(queue)
    assert {parent_of(spans["starting"]), parent_of(spans["restoring"])} == {id_of(wake)}
    assert [round(seconds(one), 3) for one in (queue, wake, spans["starting"], spans["engine"])] == [1.0, 0.4, 0.3, 0.5]
    assert wake.end_time is not None
    assert queue.end_time is not None
    assert abs(wake.end_time - queue.end_time) < 1e6, "it ended as long ago as was said"
    assert spans["restoring"].start_time == spans["starting"].end_time
    assert root.attributes is not None
    assert (root.attributes["rewarm.request"], root.attributes["rewarm.start"]) == ("req-1", "cold")
    assert wake.attributes is not None
    assert (wake.attributes["rewarm.tier"], wake.attributes["rewarm.gb_per_s"]) == ("pooled", 2.0)


def test_a_warm_request_has_no_wait_and_no_wake() -> None:
    collected = Collected()
    collected.tracing.request("/v1/completions", {}).end(receipt(start="warm", waited_s=0.0, wake=None))
    assert set(collected.spans()) == {"POST /v1/completions", "engine"}


def test_a_client_s_trace_goes_on_and_the_engine_is_sent_ours() -> None:
    collected = Collected()
    trace = collected.tracing.request("/v1/chat/completions", {"traceparent": CLIENT})
    trace.end(receipt())
    root = collected.spans()["POST /v1/chat/completions"]
    sent = dict(trace.headers)[b"traceparent"].decode()
    assert sent == f"00-0af7651916cd43dd8448eb211c80319c-{id_of(root):016x}-01"
    assert parent_of(root) == 0xB7AD6B7169203331


def test_what_the_client_does_not_sample_is_not_sent() -> None:
    collected = Collected()
    trace = collected.tracing.request("/v1/completions", {"traceparent": CLIENT[:-2] + "00"})
    trace.end(receipt())
    assert dict(trace.headers)[b"traceparent"].endswith(b"-00"), "and the engine is told so"
    assert collected.spans() == {}


def test_none_of_a_sample_of_nothing() -> None:
    collected = Collected(sample=0.0)
    collected.tracing.request("/v1/completions", {}).end(receipt())
    assert collected.tracing.wake(WAKE, time.time_ns()) == ""
    assert collected.spans() == {}


def test_a_failed_request_says_so() -> None:
    collected = Collected()
    collected.tracing.request("/v1/completions", {}).end(receipt(state="failed", error="worker_died", status=502))
    root = collected.spans()["POST /v1/completions"]
    assert not root.status.is_ok
    assert root.attributes is not None
    assert root.attributes["error.type"] == "worker_died"


def test_a_wake_is_a_trace_of_its_own_that_those_who_waited_link_to() -> None:
    worker, gateway = Collected(), Collected()
    context = worker.tracing.wake(WAKE, time.time_ns())
    told = Wake(**{**{name: getattr(WAKE, name) for name in WAKE.__struct_fields__}, "trace": context})
    gateway.tracing.request("/v1/completions", {}).end(receipt(wake=told))
    wake = worker.spans()["wake m"]
    (link,) = gateway.spans()["POST /v1/completions"].links
    assert link.context.span_id == id_of(wake)
    assert context.split("-")[1:3] == [f"{link.context.trace_id:032x}", f"{id_of(wake):016x}"]


# --- over the wire ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """A receiver of OTLP over HTTP; (its endpoint, the spans that came)."""
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            request = ExportTraceServiceRequest.FromString(body)
            seen.extend(
                (self.path, resource.resource, span)
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            )
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- http.server's name for it
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_spans_arrive_at_a_collector_before_the_process_ends() -> None:
    with collector() as (endpoint, seen):
        with tracing_of(TracingConfig(endpoint=endpoint, service="mine"), "worker") as tracing:
            assert tracing is not None
            tracing.wake(WAKE, time.time_ns())
        assert {span.name for _, _, span in seen} == {"wake m", "starting", "restoring"}
        path, resource, _ = seen[0]
        assert path == "/v1/traces"
        told = {attribute.key: attribute.value.string_value for attribute in resource.attributes}
        assert (told["service.name"], told["rewarm.role"]) == ("mine", "worker")


def test_a_collector_that_does_not_answer_holds_up_no_end() -> None:
    began = time.monotonic()
    with tracing_of(TracingConfig(endpoint="http://127.0.0.1:9"), "worker") as tracing:
        assert tracing is not None
        tracing.wake(WAKE, time.time_ns())
    assert time.monotonic() - began < 10


def test_a_collector_that_hangs_holds_up_no_process_s_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel takes the connection, nobody answers
        process = subprocess.Popen(
            [sys.executable, "-c", HANGING.format(port=silent.getsockname()[1])],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
        )
        with process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "closing\n"
                assert process.wait(15) == 0  # three seconds and an exit; the sending itself is given thirty
            finally:
                process.kill()


HANGING = """
import time
from rewarm.config import TracingConfig
from rewarm.messages import Wake
from rewarm.tracing import tracing_of
config = TracingConfig(endpoint="http://127.0.0.1:{port}", timeout="60s")
with tracing_of(config, "worker") as tracing:
    tracing.wake(Wake(replica="m-1", worker="w", model="m", ready_at_ms=1), time.time_ns())
    print("closing", flush=True)
"""


# --- optional --------------------------------------------------------------------------------------------------------


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, text=True, capture_output=True, check=False)


def test_without_an_endpoint_nothing_of_it_is_needed() -> None:
    done = run(
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"  # any import of it fails
        "import gateway, worker.run\n"
        "from rewarm.config import TracingConfig\n"
        "from rewarm.tracing import tracing_of\n"
        "with tracing_of(TracingConfig(), 'gateway') as tracing:\n"
        "    assert tracing is None\n"
    )
    assert done.returncode == 0, done.stderr


def test_with_an_endpoint_and_without_the_libraries_the_error_says_what_to_install() -> None:
    done = run(
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "from rewarm.config import TracingConfig\n"
        "from rewarm.errors import TracingUnavailable\n"
        "from rewarm.tracing import Tracing\n"
        "try:\n"
        "    Tracing(TracingConfig(endpoint='http://x'), role='gateway', instance='i')\n"
        "except TracingUnavailable as error:\n"
        "    print(error.advice)\n"
    )
    assert "rewarm[otel]" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://host/otlp/v1/traces", "https://host/otlp/v1/traces"),
    ],
)
def test_the_path_is_added_where_there_is_none(endpoint: str, url: str) -> None:
    assert TracingConfig(endpoint=endpoint).traces_url == url


def test_an_endpoint_is_a_url() -> None:
    with pytest.raises(ConfigInvalid, match=r"tracing\.endpoint"):
        parse("tracing: {endpoint: 'collector:4317'}", Path("x.yaml"))
