"""What `rewarm wake` makes of what it sees of the model while it waits."""

from __future__ import annotations

import pytest

from rewarm.cli.operate import Stirring

COLD = {"state": "cold", "waits_for": None, "waiting": 0, "jobs_waiting": 0}
LOADING = {**COLD, "state": "loading"}
SHORT_OF_ROOM = {**COLD, "waits_for": "waits for room: a and b are in use"}


@pytest.mark.parametrize("seen", [LOADING, SHORT_OF_ROOM, {**COLD, "waiting": 1}, {**COLD, "jobs_waiting": 1}])
def test_a_wake_that_loads_or_waits_goes_on_for_any_time(seen: dict[str, object]) -> None:
    wake = Stirring(0.0)
    assert [wake.given_up(seen, now_s) for now_s in (1.0, 600.0, 3600.0)] == ["", "", ""]


@pytest.mark.parametrize("seen", [LOADING, SHORT_OF_ROOM])
def test_a_model_that_is_cold_again_will_not_become_ready(seen: dict[str, object]) -> None:
    wake = Stirring(0.0)
    wake.given_up(seen, 30.0)
    assert wake.given_up(COLD, 34.0) == "", "between two attempts nothing of it may be seen"
    assert "somebody put it to sleep" in wake.given_up(COLD, 36.0)


def test_a_second_attempt_begins_anew() -> None:
    wake = Stirring(0.0)
    for now_s in (1.0, 9.0, 17.0):
        assert wake.given_up(LOADING, now_s) == ""
        assert wake.given_up(COLD, now_s + 4) == ""


def test_a_command_that_nobody_takes_is_not_waited_for() -> None:
    wake = Stirring(0.0)
    assert wake.given_up(COLD, 59.0) == ""
    assert "no leader" in wake.given_up(COLD, 61.0)
