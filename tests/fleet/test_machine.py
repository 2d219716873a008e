from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.depth import examples
from tests.fleet.job_machine import job_machine
from tests.fleet.lua_sources import checked_sources
from tests.fleet.machine import machine

SETTINGS = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,  # a failure here is the same failure everywhere
    database=None,
    report_multiple_bugs=False,
)
JOB_SETTINGS = settings(SETTINGS, max_examples=examples(60), stateful_step_count=60)


@pytest.mark.timeout(300)
def test_every_ticket_is_ready_or_leased_or_gone(redis_url: str) -> None:
    run_state_machine_as_test(machine(redis_url, checked_sources()), settings=SETTINGS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_job_is_ready_or_leased_or_ended(redis_url: str) -> None:
    run_state_machine_as_test(job_machine(redis_url, checked_sources()), settings=JOB_SETTINGS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", ["the lease stays", "claim forgets its answers"])
def test_the_machine_notices_a_broken_script(redis_url: str, mutation: str) -> None:
    """All of them: ``python -m tests.fleet.mutate_lua``."""
    broken = machine(redis_url, checked_sources(mutation))
    with pytest.raises(AssertionError):
        run_state_machine_as_test(broken, settings=settings(SETTINGS, phases=[Phase.generate]))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", ["writes ignore the attempt", "an ended job keeps its lease"])
def test_the_machine_of_jobs_notices_a_broken_script(redis_url: str, mutation: str) -> None:
    broken = job_machine(redis_url, checked_sources(mutation))
    with pytest.raises(AssertionError):
        run_state_machine_as_test(broken, settings=settings(JOB_SETTINGS, phases=[Phase.generate], max_examples=150))
