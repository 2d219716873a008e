"""What is decided about a job without Redis or a socket: orders, places in a stream, listings, and how it is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from fleet import FleetView
from gateway.jobs.cursor import Cursor, read_cursor, split_events, tag_of
from gateway.jobs.listing import read_listing
from gateway.jobs.order import idempotency, preferred_wait_s, read_order
from gateway.jobs.results import as_json
from gateway.jobs.showing import Showing, failure_of
from gateway.parse import ENDPOINTS, peek
from gateway.view import View
from rewarm.cli.jobs_table import job_words
from rewarm.config import catalogue, parse
from rewarm.errors import (
    ForeignEventId,
    InvalidHeader,
    InvalidJson,
    InvalidRequest,
    JobBodyTooLarge,
    RewarmError,
    UnknownEndpoint,
)
from rewarm.jobs import Job, JobSpec, JobState, WebhookSpec
from rewarm.messages import Progress, ReplicaReport, WorkerBeat
from rewarm.states import ReplicaState

MIB = 2**20
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def dump(body: Any) -> bytes:
    return json.dumps(body).encode()


# --- orders ----------------------------------------------------------------------------------------------------------


def test_an_engine_s_body_alone_is_an_order_and_reaches_the_engine_byte_for_byte() -> None:
    data = b'{"model":"m",  "messages":[{"role":"user","content":"Hi"}], "temperature": 0.10}'
    order = read_order(data, MIB)
    assert (order.endpoint.path, order.model, order.body) == ("/v1/chat/completions", "m", data)
    assert (order.priority, order.webhook, order.start_deadline_s, order.metadata) == (None, None, None, {})


def test_the_job_s_own_fields_are_taken_out_of_the_body() -> None:
    own = {
        "endpoint": "/v1/completions",
        "priority": "low",
        "webhook": "https://example.com/hook",
        "start_deadline_s": 90,
        "metadata": {"for": "me"},
    }
    order = read_order(dump({"model": "m", "prompt": "Hi", "seed": 7, **own}), MIB)
    assert json.loads(order.body) == {"model": "m", "prompt": "Hi", "seed": 7}
    assert order.endpoint.path == "/v1/completions"
    assert (order.priority, order.start_deadline_s, order.metadata) == ("low", 90.0, {"for": "me"})
    assert order.webhook == WebhookSpec(url="https://example.com/hook")


def test_numbers_are_not_rewritten_on_the_way() -> None:
    order = read_order(b'{"model":"m","messages":[],"seed":12345678901234567890123,"priority":"low"}', MIB)
    assert b"12345678901234567890123" in order.body


def test_an_envelope_leaves_every_field_of_the_body_to_the_engine() -> None:
    body = {**CHAT, "metadata": {"engine": "sees this"}, "priority": 3, "stream": True}
    order = read_order(dump({"body": body, "metadata": {"job": "mine"}}), MIB)
    assert json.loads(order.body) == body
    assert (order.metadata, order.priority, order.stream) == ({"job": "mine"}, None, True)


def test_a_webhook_may_say_what_it_wants_to_hear() -> None:
    order = read_order(dump({**CHAT, "webhook": {"url": "https://e.com", "events": ["in_progress"]}}), MIB)
    assert order.webhook == WebhookSpec(url="https://e.com", events=("in_progress",))


@pytest.mark.parametrize(
    ("body", "error", "param"),
    [
        (b"", InvalidJson, None),
        (b"{", InvalidJson, None),
        (b"[1]", InvalidRequest, None),
        (dump({"messages": []}), InvalidRequest, "model"),
        (dump({"model": "m"}), InvalidRequest, "messages"),
        (dump({**CHAT, "endpoint": "/v1/images"}), UnknownEndpoint, "endpoint"),
        (dump({**CHAT, "endpoint": 3}), InvalidRequest, "endpoint"),
        (dump({**CHAT, "endpoint": "/v1/embeddings"}), InvalidRequest, "input"),
        (dump({**CHAT, "priority": "urgent"}), InvalidRequest, "priority"),
        (dump({**CHAT, "start_deadline_s": 0}), InvalidRequest, "start_deadline_s"),
        (dump({**CHAT, "start_deadline_s": 1e9}), InvalidRequest, "start_deadline_s"),
        (dump({**CHAT, "metadata": {"a": 1}}), InvalidRequest, "metadata"),
        (dump({**CHAT, "metadata": {str(n): "" for n in range(17)}}), InvalidRequest, "metadata"),
        (dump({**CHAT, "webhook": 1}), InvalidRequest, "webhook"),
        (dump({**CHAT, "webhook": {"url": "https://e.com", "events": ["born"]}}), InvalidRequest, "webhook"),
        (dump({**CHAT, "webhook": {"url": "https://e.com", "events": []}}), InvalidRequest, "webhook"),
        (dump({"body": CHAT, "temperature": 1}), InvalidRequest, "temperature"),
        (dump({"body": "text"}), InvalidRequest, None),
        (b'{"body":' + b'{"a":' * 5000, InvalidJson, None),
    ],
)
def test_a_bad_order_is_told_with_the_field(body: bytes, error: type[RewarmError], param: str | None) -> None:
    with pytest.raises(error) as caught:
        read_order(body, MIB)
    assert caught.value.param == param


def test_the_bound_is_on_what_the_engine_would_see() -> None:
    body = dump({**CHAT, "user": "x" * 1000})
    with pytest.raises(JobBodyTooLarge):
        read_order(body, len(body) - 1)
    read_order(dump({"body": json.loads(body)}), len(body))


def test_an_idempotency_key_goes_with_a_digest_of_the_whole_request() -> None:
    headers = {"Idempotency-Key": "a key"}
    assert idempotency({}, b"x") is None
    assert idempotency(headers, b"x") == idempotency(headers, b"x")
    assert idempotency(headers, b"x") != idempotency(headers, b"y")
    for key in ("", "x" * 256, "tab\t", "ä"):
        with pytest.raises(InvalidHeader):
            idempotency({"Idempotency-Key": key}, b"x")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("wait=5", 5), ("respond-async, wait=5", 5), ('Wait="7"; x=1', 7), ("wait=999", 60), ("wait=0", 0)],
)
def test_prefer_wait(text: str, seconds: float) -> None:
    assert preferred_wait_s({"Prefer": text}) == seconds


@pytest.mark.parametrize("text", ["", "respond-async", "wait", "wait=soon", "wait=-1", "wait=1.5"])
def test_a_preference_that_cannot_be_read_is_none(text: str) -> None:
    assert preferred_wait_s({"Prefer": text}) is None


# --- what is no JSON -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (rb'{"model":"m","messages":[],"user":"\ud83d"}', r"\ud83d (byte 35) is one half of a character"),
        (rb'{"model":"m","messages":[],"user":"\\\\\udc00 x"}', r"\udc00 (byte 39) is one half"),
        (rb'{"model":"m","messages":[],"user":"\\ud83d"', "Input data was truncated"),
        (rb'{"model":"m","messages":[],"user":"\ud83d\ude00"', "Input data was truncated"),
    ],
)
def test_half_a_character_is_not_taken_for_a_body_that_ends_early(data: bytes, said: str) -> None:
    with pytest.raises(InvalidJson) as caught:
        read_order(data, MIB)
    assert said in caught.value.message
    with pytest.raises(InvalidJson) as caught:
        peek(data, ENDPOINTS["/v1/chat/completions"])
    assert said in caught.value.message


@pytest.mark.parametrize("result", [None, b"", b"404: Not Found", b"{", b'"\xed\xa0\x80"', b"{} {}", b"[" * 100_000])
def test_what_is_no_json_is_never_given_as_some(result: bytes | None) -> None:
    assert as_json(result) is None
    assert as_json(b' {"a": 1e400}\n') == b' {"a": 1e400}\n', "and what is, is not rewritten"


# --- places in a stream ----------------------------------------------------------------------------------------------

SPEC = JobSpec(id="job_a", tenant="t", model="m", asked_model="alias", path="/v1/chat/completions")
JOB = Job(spec=SPEC, state=JobState.IN_PROGRESS, created_ms=1000, attempt=2, chunks=7)


@pytest.mark.parametrize("cursor", [Cursor(1, 0), Cursor(1, 7), Cursor(2, 7, 3)])
def test_an_event_id_is_read_back(cursor: Cursor) -> None:
    assert read_cursor(cursor.event_id(tag_of("job_a")), JOB) == cursor


def test_a_chunk_that_was_given_in_part_is_read_again() -> None:
    assert Cursor(2, 7).after == "2-7"
    assert Cursor(2, 7, 3).after == "2-6"


def test_without_an_id_one_reads_from_the_start() -> None:
    assert read_cursor(None, JOB) == read_cursor("", JOB) == Cursor()


@pytest.mark.parametrize("text", ["x", "1", "1-2-3-4", "-1-2", "1-0.3", "3-1", "1-1-00000000", "१-१"])
def test_an_id_of_something_else_is_foreign(text: str) -> None:
    with pytest.raises(ForeignEventId):
        read_cursor(text, JOB, bare=True)


def test_an_id_of_another_job_is_foreign() -> None:
    for bare in (True, False):
        with pytest.raises(ForeignEventId):
            read_cursor(Cursor(1, 1).event_id(tag_of("job_b")), JOB, bare=bare)


def test_an_id_that_names_no_job_will_do_only_where_it_is_asked_for() -> None:
    assert read_cursor("2-7", JOB, bare=True) == Cursor(2, 7)
    with pytest.raises(ForeignEventId):
        read_cursor("2-7", JOB)


def test_an_id_of_an_attempt_that_has_not_been_is_foreign() -> None:
    with pytest.raises(ForeignEventId):
        read_cursor(Cursor(9, 9).event_id(tag_of("job_a")), JOB)


def test_a_chunk_is_cut_into_the_engine_s_events() -> None:
    assert split_events(b"data: 1\n\nevent: x\ndata: 2\n\n") == [b"data: 1", b"event: x\ndata: 2"]
    assert split_events(b"data: 1\r\n\r\n") == [b"data: 1"]


# --- listings --------------------------------------------------------------------------------------------------------


def test_a_listing_by_status_page_and_kind() -> None:
    listing = read_listing({"limit": "5", "after": "job_x", "status": "completed,failed", "kind": "batch"})
    assert (listing.limit, listing.after, listing.kinds) == (5, "job_x", frozenset({"batch"}))
    assert listing.states == frozenset({JobState.COMPLETED, JobState.FAILED})


def test_loading_is_shown_but_never_stored() -> None:
    assert read_listing({"status": "loading"}).states == frozenset({JobState.QUEUED})


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"status": "new"}, {"kind": "x"}])
def test_a_bad_listing_names_its_parameter(query: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_listing(query)
    assert caught.value.param == next(iter(query))


# --- how a job is shown ----------------------------------------------------------------------------------------------


class Fleet:
    """A view whose model ``m`` is as the test says."""

    def __init__(self) -> None:
        self.view = View(None, heartbeat_s=1.0)  # type: ignore[arg-type]  # nobody reads from Redis here
        self.showing = Showing(self.view)
        self.entries = catalogue(parse('models: {m: {engine: command, cmd: "x ${PORT}", slots: 2, aliases: [alias]}}'))

    def is_(self, state: ReplicaState, *, slots: int = 2, in_flight: int = 0, **progress: Any) -> None:
        report = ReplicaReport(
            replica="r",
            model="m",
            spec_hash="x",
            state=state,
            term=1,
            endpoint="unix:/x",
            slots=slots,
            in_flight=in_flight,
            progress=Progress(model="m", phase=state, **progress) if progress else None,
        )
        beat = WorkerBeat(worker="w", boot="w", host="h", pid=1, replicas=(report,))
        self.view.adopt(FleetView(now_ms=5000, catalogue=self.entries, workers={"w": beat}))

    def show(self, job: Job) -> dict[str, Any]:
        described = self.showing.describe(job)
        json.dumps(described)
        return described


QUEUED = replace(JOB, state=JobState.QUEUED, attempt=0, chunks=0, position=0)


@pytest.mark.asyncio
async def test_from_cold_through_the_load_to_the_engine() -> None:
    fleet = Fleet()
    seen = [fleet.show(QUEUED)]
    for phase, fraction in ((ReplicaState.STARTING, 0.1), (ReplicaState.RESTORING, 0.6), (ReplicaState.WARMING, 0.9)):
        fleet.is_(phase, fraction=fraction, eta_s=4.0)
        seen.append(fleet.show(QUEUED))
    fleet.is_(ReplicaState.READY)
    seen.append(fleet.show(QUEUED))
    seen.append(fleet.show(replace(QUEUED, state=JobState.IN_PROGRESS, position=None, attempt=1, tokens=5)))
    progress = [one["progress"] for one in seen]
    assert [p["phase"] for p in progress] == ["cold", "starting", "restoring", "warming", "ready", "running"]
    assert [p["fraction"] for p in progress] == [0.0, 0.1, 0.6, 0.9, 1.0, 1.0]
    assert [one["status"] for one in seen] == ["queued", *["loading"] * 3, "queued", "in_progress"]
    assert seen[-1]["tokens"] == 5
    assert seen[0]["status_url"] == "/v1/jobs/job_a"


@pytest.mark.asyncio
async def test_the_fraction_stays_when_a_second_load_begins() -> None:
    fleet = Fleet()
    fleet.is_(ReplicaState.RESTORING, fraction=0.6)
    fleet.show(QUEUED)
    fleet.is_(ReplicaState.STARTING, fraction=0.1, attempt=2)
    told = fleet.show(QUEUED)["progress"]
    assert (told["phase"], told["fraction"], told["load_attempt"]) == ("starting", 0.6, 2)


@pytest.mark.asyncio
async def test_the_eta_counts_the_load_and_those_before_in_the_queue() -> None:
    fleet = Fleet()
    fleet.is_(ReplicaState.RESTORING, fraction=0.5, eta_s=10.0)
    far = replace(QUEUED, position=5)
    assert fleet.show(QUEUED)["progress"]["eta_s"] == 10.0
    assert fleet.show(far)["progress"]["eta_s"] is None, "nobody knows how long this model's jobs take"
    ended = replace(JOB, state=JobState.COMPLETED, started_ms=1000, ended_ms=5000)
    fleet.show(ended)
    assert fleet.show(far)["progress"]["eta_s"] == 10.0 + 5 * 4.0, "of two slots jobs have one, and five go first"
    fleet.is_(ReplicaState.READY)
    assert fleet.show(far)["progress"]["eta_s"] == 20.0
    assert fleet.showing.retry_after_s(far) == 5
    assert fleet.showing.retry_after_s(ended) is None


@pytest.mark.asyncio
async def test_the_eta_counts_those_who_run() -> None:
    fleet = Fleet()
    fleet.is_(ReplicaState.READY, slots=5, in_flight=4)
    assert fleet.show(QUEUED)["progress"]["eta_s"] is None, "nobody knows when one of them ends"
    fleet.show(replace(JOB, state=JobState.COMPLETED, started_ms=1000, ended_ms=9000))
    told = [fleet.show(replace(QUEUED, position=n))["progress"]["eta_s"] for n in range(4)]
    assert told == [2.0, 4.0, 6.0, 8.0], "four slots of eight seconds each: one ends every two"
    fleet.is_(ReplicaState.READY, slots=5, in_flight=2)
    told = [fleet.show(replace(QUEUED, position=n))["progress"]["eta_s"] for n in range(4)]
    assert told == [0.0, 0.0, 2.0, 4.0]
    fleet.is_(ReplicaState.READY, slots=1, in_flight=1)
    assert fleet.show(QUEUED)["progress"]["eta_s"] == 8.0, "a single slot is for jobs as well"


@pytest.mark.asyncio
async def test_the_attempts_that_count_are_told_apart_from_those_that_began() -> None:
    fleet = Fleet()
    told = fleet.show(replace(JOB, attempt=3, spent=1))
    assert (told["attempt"], told["spent"], told["max_attempts"]) == (3, 1, 3)
    assert "of 3" not in job_words(told), "given back twice, by workers that stopped: it has all its attempts"
    assert "attempt 2 of 3" in job_words(fleet.show(replace(JOB, attempt=3, spent=2)))


@pytest.mark.asyncio
async def test_how_a_job_ended_as_an_error() -> None:
    fleet = Fleet()
    completed = replace(JOB, state=JobState.COMPLETED, ended_ms=9000)
    assert fleet.show(completed)["error"] is None and failure_of(completed) is None
    ours = replace(JOB, state=JobState.FAILED, error_code="job_timeout", error_message="too long")
    engines = replace(JOB, state=JobState.FAILED, error_code="bad_prompt", error_message="no", http_status=400)
    statuses = {}
    bare = replace(engines, error_code="engine_error", http_status=404)
    for job in (ours, engines, bare, replace(JOB, state=JobState.CANCELLED), replace(JOB, state=JobState.EXPIRED)):
        error = failure_of(job)
        assert error is not None
        statuses[error.payload()["code"]] = error.status
    assert statuses == {
        "job_timeout": 504,
        "bad_prompt": 400,
        "engine_error": 404,
        "job_cancelled": 410,
        "job_expired": 410,
    }
    assert fleet.show(engines)["error"] == {
        "message": "no",
        "type": "invalid_request_error",
        "param": None,
        "code": "bad_prompt",
    }
    assert fleet.show(replace(JOB, state=JobState.CANCELLED))["error"] is None
