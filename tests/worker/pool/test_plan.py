"""What a pool does next, without a process."""

from __future__ import annotations

from worker.pool.plan import ANY, Goal, Import, Prepare, Ready, Retire, State, next_step

GOAL = Goal(models=2, ready=1)


def test_it_grows_from_the_zygote_over_the_models_to_processes_that_are_ready() -> None:
    assert next_step(State(["a", "b"]), GOAL, 0) == Import()
    assert next_step(State(["a", "b"], {ANY: 0}), GOAL, 0) == Prepare("a")
    assert next_step(State(["a", "b"], {ANY: 0, "a": 0}), GOAL, 0) == Prepare("b")
    assert next_step(State(["a", "b"], {ANY: 0, "a": 0, "b": 0}), GOAL, 0) == Ready("a")
    assert next_step(State(["a", "b"], {ANY: 0, "a": 1, "b": 0}), GOAL, 0) == Ready("b")
    assert next_step(State(["a", "b"], {ANY: 0, "a": 1, "b": 1}), GOAL, 0) == Ready(ANY)
    assert next_step(State(["a", "b"], {ANY: 1, "a": 1, "b": 1}), GOAL, 0) is None


def test_while_an_engine_loads_nothing_is_made_but_what_is_wrong_is_ended() -> None:
    assert next_step(State(["a"], loading=True), GOAL, 0) is None
    assert next_step(State(["a"], {ANY: 0}, loading=True), GOAL, 0) is None
    step = next_step(State(["a"], {ANY: 0, "gone": 1}, loading=True), GOAL, 0)
    assert isinstance(step, Retire) and step.key == "gone"


def test_without_a_model_that_can_use_it_there_is_no_pool() -> None:
    assert next_step(State([]), GOAL, 0) is None
    step = next_step(State([], {ANY: 1}), GOAL, 0)
    assert isinstance(step, Retire) and step.key == ANY


def test_after_a_failure_it_waits() -> None:
    assert next_step(State(["a"], retry_at=5.0), GOAL, 4.9) is None
    assert next_step(State(["a"], retry_at=5.0), GOAL, 5.0) == Import()


def test_what_was_prepared_with_less_is_prepared_again_once_there_is_nothing_else_to_do() -> None:
    assert next_step(State(["a", "b"], {ANY: 1, "a": 1, "b": 0}, again=frozenset("a")), GOAL, 0) == Ready("b")
    assert next_step(State(["a", "b"], {ANY: 1, "a": 1, "b": 1}, again=frozenset("a")), GOAL, 0) == Prepare("a")
    assert next_step(State(["a"], {ANY: 1, "a": 1}, again=frozenset("a"), loading=True), GOAL, 0) is None


def test_while_no_process_can_be_made_what_there_is_stays_as_it_is() -> None:
    assert next_step(State(["a"], {ANY: 0}, fork_at=5.0), GOAL, 4.9) is None
    assert next_step(State(["a"], {ANY: 0}, fork_at=5.0), GOAL, 5.0) == Prepare("a")
    assert next_step(State(["a"], fork_at=5.0), GOAL, 4.9) == Import()


def test_a_model_whose_preparation_failed_leaves_its_place_to_the_next() -> None:
    assert next_step(State(["a", "b"], {ANY: 0}, frozenset("a")), GOAL, 0) == Prepare("b")


def test_only_so_many_are_kept_and_the_one_asked_for_longest_ago_goes() -> None:
    step = next_step(State(["c", "a", "b"], {ANY: 1, "a": 1, "b": 1}), GOAL, 0)
    assert isinstance(step, Retire) and step.key == "b"
    assert next_step(State(["c", "a", "b"], {ANY: 1, "a": 1}), GOAL, 0) == Prepare("c")


def test_other_versions_make_it_anew() -> None:
    step = next_step(State(["a"], {ANY: 1, "a": 1}, outdated=True), GOAL, 0)
    assert isinstance(step, Retire) and step.key == ANY and "versions" in step.why


def test_over_its_memory_it_gives_up_models_first_and_the_zygote_last() -> None:
    step = next_step(State(["a", "b"], {ANY: 1, "a": 1, "b": 1}, over_limit=True), GOAL, 0)
    assert isinstance(step, Retire) and (step.key, step.over_limit) == ("b", True)
    step = next_step(State(["a"], {ANY: 1}, over_limit=True), GOAL, 0)
    assert isinstance(step, Retire) and (step.key, step.over_limit) == (ANY, True)


def test_what_ends_over_its_memory_for_another_reason_does_not_make_it_smaller() -> None:
    step = next_step(State(["a"], {ANY: 1, "a": 1, "gone": 1}, over_limit=True), GOAL, 0)
    assert isinstance(step, Retire) and (step.key, step.over_limit) == ("gone", False)
