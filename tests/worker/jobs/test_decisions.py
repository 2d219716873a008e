"""When a chunk is due, and what the end of an attempt means for its job."""

from __future__ import annotations

import json

import pytest

from rewarm.jobs import JobState
from worker.jobs.batching import Batch
from worker.jobs.verdict import (
    Answered,
    Broke,
    Cancelled,
    Drop,
    End,
    Finish,
    GivenBack,
    Lost,
    Overran,
    Refused,
    Requeue,
    Said,
    TooLarge,
    judge,
)


def test_a_chunk_is_due_a_while_after_its_first_event() -> None:
    batch = Batch(after_s=0.1, chunk_bytes=100)
    assert batch.due_in_s(0.0) is None
    batch.add(b"one", 1, now=10.0)
    batch.add(b"two", 2, now=10.09)
    assert batch.due_in_s(10.09) == pytest.approx(0.01)
    assert batch.due_in_s(10.2) == 0.0
    chunk = batch.take()
    assert (chunk.seq, chunk.data, chunk.tokens) == (1, b"onetwo", 2)
    assert batch.due_in_s(10.2) is None


def test_or_as_soon_as_it_is_large_enough_or_the_last() -> None:
    batch = Batch(after_s=60, chunk_bytes=4)
    batch.add(b"abcd", 1, now=0.0)
    assert batch.due_in_s(0.0) == 0.0
    assert batch.take().seq == 1
    batch.add(b"x", 2, now=0.0)
    assert batch.due_in_s(0.0) == 60
    batch.close()
    assert batch.due_in_s(0.0) == 0.0
    assert batch.take().seq == 2


def test_the_buffer_is_full_at_its_limit_and_empty_after_a_take() -> None:
    batch = Batch(limit_bytes=8)
    batch.add(b"1234", 1, 0.0)
    batch.add(b"5678", 2, 0.0)
    assert batch.size == 8
    assert batch.full
    assert batch.take().data == b"12345678"
    assert batch.size == 0


def spent(end: End, *, leaving: bool = False) -> bool:
    verdict = judge(end, attempt=1, leaving=leaving)
    assert isinstance(verdict, Requeue)
    return verdict.spent


def test_an_engine_that_may_have_begun_spends_an_attempt() -> None:
    assert spent(Broke("worker_died", "gone"))
    assert spent(Said(500, b"oops"))
    assert spent(Said(503, b"oops"))
    assert spent(Said(429, b"slow down")), "a refusal of the moment, not of the body"


def test_an_engine_that_has_seen_nothing_does_not() -> None:
    assert not spent(Refused("grant"))


def test_nor_does_a_stop_of_ours() -> None:
    assert not spent(GivenBack("the worker stops"))
    assert not spent(Broke("worker_died", "gone"), leaving=True)
    assert not spent(Said(500, b"oops"), leaving=True)


def failed(end: End) -> tuple[str | None, int]:
    verdict = judge(end, attempt=1, leaving=False, tokens=3)
    assert isinstance(verdict, Finish)
    assert verdict.outcome.state is JobState.FAILED
    return verdict.outcome.error_code, verdict.outcome.http_status


def test_a_body_that_the_engine_refuses_fails_with_the_engines_error_at_once() -> None:
    body = json.dumps({"error": {"message": "temperature is hot", "type": "BadRequestError", "code": 400}}).encode()
    verdict = judge(Said(400, body), attempt=1, leaving=False)
    assert isinstance(verdict, Finish)
    assert verdict.result == body
    assert verdict.outcome.error_message == "temperature is hot"
    assert (verdict.outcome.error_code, verdict.outcome.http_status) == ("BadRequestError", 400)
    assert failed(Said(404, b'{"error": {"message": "no", "code": "model_not_found"}}')) == ("model_not_found", 404)
    assert failed(Said(422, b"")) == ("engine_error", 422)


def test_bounds_of_the_job_fail_it() -> None:
    assert failed(Overran(60)) == ("job_timeout", 504)
    assert failed(TooLarge(1024)) == ("job_result_too_large", 500)


def test_a_whole_answer_completes_it() -> None:
    verdict = judge(Answered(b"{}", 7, {"completion_tokens": 7}), attempt=1, leaving=True)
    assert isinstance(verdict, Finish)
    assert (verdict.outcome.state, verdict.outcome.http_status) == (JobState.COMPLETED, 200)
    assert (verdict.outcome.tokens, verdict.result) == (7, b"{}")


def test_an_answer_that_says_it_failed_fails_it_and_stays_readable() -> None:
    verdict = judge(Answered(b"{}", failure=("server_error", "oh")), attempt=1, leaving=False)
    assert isinstance(verdict, Finish)
    assert (verdict.outcome.state, verdict.outcome.error_code) == (JobState.FAILED, "server_error")
    assert verdict.result == b"{}"


def test_a_cancelled_one_ends_cancelled_and_a_lost_one_is_not_touched() -> None:
    verdict = judge(Cancelled(), attempt=1, leaving=False, tokens=5)
    assert isinstance(verdict, Finish)
    assert (verdict.outcome.state, verdict.outcome.tokens) == (JobState.CANCELLED, 5)
    assert judge(Lost(), attempt=1, leaving=False) == Drop()


def test_pauses_grow_with_attempts_up_to_a_bound() -> None:
    def pause(attempt: int) -> float:
        verdict = judge(Broke("x", "y"), attempt=attempt, leaving=False)
        assert isinstance(verdict, Requeue)
        return verdict.after_s

    pauses = [pause(attempt) for attempt in range(1, 30)]
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < 1
    assert pauses[-1] == 5.0
