"""Error codes are stable, unique and each has advice."""

from __future__ import annotations

from rewarm.errors import ModelLoading, OperatorError, catalogue
from rewarm.states import MEANINGS, FailureReason


def test_every_code_is_used_once() -> None:
    codes = [error.code for error in catalogue()]
    assert len(codes) == len(set(codes))


def test_every_error_advises() -> None:
    bug = "This is a bug"
    assert [error.code for error in catalogue() if error.advice.startswith(bug)] == []


def test_no_error_asks_a_client_to_wait_longer_than_eight_seconds() -> None:
    assert all((error.retry_after_s or 0) <= 8 for error in catalogue())


def test_the_body_is_openai_s_envelope_with_error_first() -> None:
    error = ModelLoading("not yet", extra={"loading": {"phase": "restoring"}})
    assert list(error.body()) == ["error", "loading"]
    assert error.body()["error"] == {
        "message": "not yet",
        "type": "overloaded_error",
        "param": None,
        "code": "model_loading",
    }
    assert error.headers() == {"Retry-After": "5"}


def test_operator_errors_have_exit_codes_of_their_own() -> None:
    codes = {e.exit_code for e in catalogue() if issubclass(e, OperatorError)}
    assert 0 not in codes
    assert 1 not in codes


def test_every_reason_of_a_failed_load_says_what_to_do() -> None:
    assert set(MEANINGS) == set(FailureReason)
