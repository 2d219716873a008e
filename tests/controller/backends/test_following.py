"""How the reading of one kind of object goes on: after drops, versions too old, refusals and a busy API server."""

from __future__ import annotations

from dataclasses import replace

from controller.backends.following import STEADY_S, Following, ended, failed, listed, moved

WATCHING = Following("17")


def test_a_list_gives_the_version_that_the_watch_begins_at_and_events_move_it() -> None:
    assert listed(Following(), "17") == WATCHING
    assert moved(WATCHING, "18").version == "18"
    assert moved(replace(WATCHING, failures=3), "18").failures == 0
    assert moved(WATCHING, "").version == "17", "an event without one"


def test_a_watch_that_ends_after_its_time_goes_on_at_once_where_it_was() -> None:
    assert ended(replace(WATCHING, failures=2, wait_s=4), lasted_s=STEADY_S) == WATCHING


def test_watches_that_end_as_they_begin_are_opened_ever_more_slowly_where_they_were() -> None:
    following, waits = WATCHING, []
    for _ in range(8):
        following = ended(following, lasted_s=0.1)
        waits.append(following.wait_s)
    assert following.version == "17"
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert ended(WATCHING, 0.1, jitter=0.0).wait_s < ended(WATCHING, 0.1, jitter=1.0).wait_s, "not all at one moment"
    assert ended(replace(WATCHING, failures=10_000), 0.1).wait_s == 30, "however long the API server is away"


def test_a_drop_goes_on_where_it_was_ever_more_slowly() -> None:
    following, waits = WATCHING, []
    for _ in range(9):
        following = failed(following, None, "connection reset")
        waits.append(following.wait_s)
    assert following.version == "17"
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_version_that_is_too_old_means_another_list_and_not_in_a_circle() -> None:
    first = failed(WATCHING, 410, "too old resource version")
    assert (first.version, first.wait_s) == ("", 0.0)
    again = failed(listed(first, "99"), 410, "too old resource version")
    assert (again.version, again.wait_s > 0) == ("", True)


def test_a_refusal_is_said_and_asked_again_rarely() -> None:
    for status in (403, 404):
        refused = failed(WATCHING, status, "pods cannot be seen: forbidden")
        assert (refused.version, refused.wait_s) == ("", 10)
        assert refused.refused == "pods cannot be seen: forbidden"
        assert listed(refused, "5").refused == "", "and forgotten when it is allowed"


def test_a_busy_server_says_how_long_to_wait() -> None:
    assert failed(WATCHING, 429, "too many requests", retry_after_s=7).wait_s == 7
    assert failed(WATCHING, 429, "too many requests").wait_s == 0.5
