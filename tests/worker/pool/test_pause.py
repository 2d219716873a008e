"""What fails is tried again ever more slowly. No clock."""

from __future__ import annotations

from worker.pool.pause import Pause


def failing(pause: Pause, now: float, times: int, takes_s: float = 10.0) -> tuple[list[float], float]:
    """The pauses of tries that each begin when they may and fail after ``takes_s``, and when the last one ends."""
    pauses = []
    for _ in range(times):
        pauses.append(pause.failed(now))
        now += pauses[-1] + takes_s
    return pauses, now


def test_each_failure_in_a_row_doubles_it_up_to_the_longest() -> None:
    pauses, _ = failing(Pause(2, 300), 1000.0, 10)
    assert pauses == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_no_try_is_made_before_its_end() -> None:
    pause = Pause(2, 300)
    pause.failed(1000.0)
    assert pause.until == 1002.0


def test_after_a_good_while_it_is_short_again_and_grows_anew() -> None:
    pause = Pause(2, 300)
    _, now = failing(pause, 1000.0, 5)
    pauses, _ = failing(pause, now + 301, 4)
    assert pauses == [2, 4, 8, 16]


def test_a_short_while_of_success_does_not_make_it_short() -> None:
    pause = Pause(2, 300)
    failing(pause, 1000.0, 5)
    assert pause.failed(pause.until + 299) == 64
