"""What ``rewarm jobs watch`` makes of a job's events, told to it as a gateway would."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rewarm.cli.api import Gateway
from rewarm.cli.jobs_watch import follow_job


class Told(Gateway):
    """A gateway that tells the same of every job."""

    def __init__(self, *events: tuple[str, dict[str, Any]]) -> None:
        super().__init__("http://gateway")
        object.__setattr__(self, "events", events)

    def follow(self, path: str, last_id: str | None, silence_s: float) -> Iterator[bytes]:
        for name, data in self.events:  # type: ignore[attr-defined]
            lines = [f"event: {name}"] * bool(name) + [f"data: {json.dumps(data)}", ""]
            yield from (f"{line}\n".encode() for line in lines)


def word(text: str) -> tuple[str, dict[str, Any]]:
    return "", {"choices": [{"delta": {"content": text}}]}


TORN = (word("Once "), word("upon"), ("restart", {"attempt": 2, "reason": "the worker died"}), word("All is "))
END = ("end", {"status": "completed", "tokens": 4})


def watch(gateway: Gateway, *, text: bool = True) -> None:
    follow_job(gateway, "job_1", "/v1/jobs/job_1", 1.0, as_json=False, text=text)


def test_a_file_is_given_the_answer_that_counts_and_nothing_of_an_attempt_that_died(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch(Told(*TORN, word("well"), END))
    out, err = capsys.readouterr()
    assert out == "All is well\n"
    assert err == "begun anew (the worker died): what came before is void\n"


def test_of_a_job_that_failed_there_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    watch(Told(*TORN, ("end", {"status": "failed", "tokens": 1})))
    assert capsys.readouterr().out == ""


def test_a_terminal_is_given_each_word_and_told_on_a_line_of_its_own_that_it_begins_anew(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", sys.stdout)  # one terminal
    watch(Told(*TORN, word("well"), END))
    assert capfd.readouterr().out == "Once upon\nbegun anew (the worker died): what came before is void\nAll is well\n"


def test_an_attempt_that_had_said_nothing_leaves_no_empty_line(capsys: pytest.CaptureFixture[str]) -> None:
    watch(Told(TORN[2], word("All is well"), END), text=False)
    assert capsys.readouterr().err.startswith("begun anew")
