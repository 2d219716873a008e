"""Who answers when a model does not: the decision, without anything around it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewarm.fallback import (
    CUT_OVER,
    FALLS_BACK,
    Chain,
    Failed,
    FirstByte,
    GiveUp,
    Outlook,
    Stay,
    Switch,
    Waits,
    chain_problems,
    decide,
    expand,
)

READY, COLD = Outlook(0.0), Outlook(None)


def looks(**links: Outlook):  # type: ignore[no-untyped-def]
    return lambda name: links.get(name, READY)


def test_a_failed_model_is_answered_for_by_the_next_in_its_chain() -> None:
    chain = Chain("a", ("b", "c"))
    step = decide(chain, Failed("model_load_failed"), 1.0, looks())
    assert isinstance(step, Switch)
    assert (step.chain.current, step.reason) == ("b", "model_load_failed")
    step = decide(step.chain, Failed("worker_died"), 2.0, looks())
    assert isinstance(step, Switch) and step.chain.current == "c"
    assert isinstance(decide(step.chain, Failed("worker_died"), 3.0, looks()), GiveUp)


def test_who_cannot_take_the_request_is_passed_over_and_told_of() -> None:
    step = decide(Chain("a", ("b", "c")), Failed("queue_full"), 0.0, looks(b=Outlook(obstacle="takes no images")))
    assert isinstance(step, Switch) and step.chain.current == "c"
    assert step.skipped == (("b", "takes no images"),)
    gone = decide(Chain("a", ("b",)), Failed("queue_full"), 0.0, looks(b=Outlook(obstacle="takes no images")))
    assert gone == GiveUp((("b", "takes no images"),))


@pytest.mark.parametrize("code", ["invalid_request", "context_length_exceeded", "model_not_found", "shutting_down"])
def test_what_is_the_requests_own_fault_is_told_at_once(code: str) -> None:
    assert decide(Chain("a", ("b",)), Failed(code), 0.0, looks()) == GiveUp()


def test_after_the_first_byte_nobody_else_answers() -> None:
    step = decide(Chain("a", ("b",)), FirstByte(), 0.0, looks())
    assert isinstance(step, Stay)
    assert isinstance(decide(step.chain, Failed("worker_died"), 1.0, looks()), GiveUp)
    assert isinstance(decide(step.chain, Waits(99.0, 1.0, 99.0), 1.0, looks()), Stay)


# --- the cut-over -----------------------------------------------------------------------------------------------------


def test_a_model_that_needs_longer_than_its_cut_over_is_not_waited_for() -> None:
    chain = Chain("a", ("b",))
    assert isinstance(decide(chain, Waits(eta_s=19.0, cut_over_s=20.0, patience_s=600.0), 0.0, looks()), Stay)
    step = decide(chain, Waits(eta_s=21.0, cut_over_s=20.0, patience_s=600.0), 0.0, looks())
    assert isinstance(step, Switch) and step.reason == CUT_OVER


def test_without_a_cut_over_the_requests_patience_counts() -> None:
    chain = Chain("a", ("b",))
    assert isinstance(decide(chain, Waits(50.0, None, 60.0), 0.0, looks()), Stay)
    assert isinstance(decide(chain, Waits(61.0, None, 60.0), 0.0, looks()), Switch)


def test_an_unknown_eta_counts_as_late_once_the_cut_over_has_passed() -> None:
    chain = Chain("a", ("b",), since_s=100.0)
    assert isinstance(decide(chain, Waits(None, 20.0, 600.0), 119.0, looks()), Stay)
    assert isinstance(decide(chain, Waits(None, 20.0, 600.0), 121.0, looks()), Switch)
    assert isinstance(decide(chain, Waits(None, None, 600.0), 999.0, looks()), Stay)


def test_whoever_is_ready_even_later_is_no_help() -> None:
    wait = Waits(eta_s=30.0, cut_over_s=20.0, patience_s=600.0)
    assert isinstance(decide(Chain("a", ("b",)), wait, 0.0, looks(b=Outlook(45.0))), Stay)
    step = decide(Chain("a", ("b", "c")), wait, 0.0, looks(b=Outlook(45.0), c=Outlook(5.0)))
    assert isinstance(step, Switch) and step.chain.current == "c"


def test_a_cold_link_of_which_nothing_is_known_may_be_woken() -> None:
    step = decide(Chain("a", ("b",)), Waits(300.0, 20.0, 600.0), 0.0, looks(b=COLD))
    assert isinstance(step, Switch)


def test_at_the_end_of_its_patience_only_who_can_answer_now_helps() -> None:
    chain = Chain("a", ("b", "c"))
    step = decide(chain, Failed("model_loading"), 0.0, looks(b=COLD, c=READY))
    assert isinstance(step, Switch) and step.chain.current == "c"
    assert isinstance(decide(chain, Failed("model_loading"), 0.0, looks(b=COLD, c=COLD)), GiveUp)


def test_who_was_only_late_is_gone_back_to_when_all_others_failed() -> None:
    away = decide(Chain("a", ("b",)), Waits(300.0, 20.0, 600.0), 0.0, looks())
    assert isinstance(away, Switch) and away.chain.current == "b"
    home = decide(away.chain, Failed("worker_died"), 5.0, looks())
    assert isinstance(home, Switch) and home.chain.current == "a"
    assert isinstance(decide(home.chain, Waits(300.0, 20.0, 600.0), 6.0, looks()), Stay)
    assert isinstance(decide(home.chain, Failed("model_load_failed"), 9.0, looks()), GiveUp)


# --- for any chain and any history -----------------------------------------------------------------------------------

outlooks = st.builds(
    Outlook, st.one_of(st.none(), st.floats(0, 1000)), st.sampled_from(["", "", "the breaker is open"])
)
events = st.one_of(
    st.builds(Failed, st.sampled_from([*sorted(FALLS_BACK), "invalid_request"])),
    st.builds(
        Waits,
        st.one_of(st.none(), st.floats(0, 1000)),
        st.one_of(st.none(), st.floats(0, 1000)),
        st.floats(0, 1000),
    ),
    st.just(FirstByte()),
)


@given(
    st.lists(st.sampled_from("bcdef"), unique=True),
    st.lists(st.tuples(events, st.floats(0, 100)), max_size=30),
    st.dictionaries(st.sampled_from("bcdef"), outlooks),
)
def test_each_link_answers_once_in_order_and_never_after_the_first_byte(links, history, seen) -> None:  # type: ignore[no-untyped-def]
    chain = Chain("a", tuple(links))
    answered = ["a"]
    now_s = 0.0
    begun = False
    for event, later_s in history:
        now_s += later_s
        step = decide(chain, event, now_s, lambda name: seen.get(name, READY))
        begun = begun or isinstance(event, FirstByte)
        if isinstance(step, GiveUp):
            continue
        if isinstance(step, Switch):
            assert not begun
            if step.chain.back:
                assert not chain.back and chain.late  # once, and only to one that had not failed
            else:
                assert not seen.get(step.chain.current, READY).obstacle
                answered.append(step.chain.current)
        chain = step.chain
        assert chain.first_byte == begun
    assert len(answered) == len(set(answered)) <= 1 + len(links)
    order = ["a", *links]
    assert [order.index(name) for name in answered] == sorted(order.index(name) for name in answered)


@given(st.lists(st.sampled_from("bcdef"), unique=True), st.sampled_from(sorted(FALLS_BACK)))
def test_failures_alone_reach_the_end_of_any_chain(links: list[str], code: str) -> None:
    chain = Chain("a", tuple(links))
    for _ in range(len(links)):
        step = decide(chain, Failed(code), 0.0, looks())
        assert isinstance(step, Switch)
        chain = step.chain
    assert isinstance(decide(chain, Failed(code), 0.0, looks()), GiveUp)


# --- the configuration's chains --------------------------------------------------------------------------------------


def test_a_fallback_is_followed_by_its_own() -> None:
    chains = {"a": ("b", "d"), "b": ("c",), "c": ("e",), "d": (), "e": ()}
    assert expand("a", chains, {}) == ("b", "c", "e", "d")
    assert expand("c", chains, {}) == ("e",)
    assert expand("a", {"a": ("bee",), "b": ()}, {"bee": "b"}) == ("b",)


def test_what_is_wrong_with_a_chain_is_told_where_it_is() -> None:
    assert chain_problems({"a": ("x",), "b": ("b",), "c": ("a", "a")}, {}) == [
        ("a", "'x' is no model"),
        ("b", "'b' is the model itself"),
        ("c", "'a' is named twice"),
    ]
    assert chain_problems({"a": ("b",), "b": ("c",), "c": ("a",)}, {}) == [("a", "goes in a circle: a -> b -> c -> a")]
    assert chain_problems({"a": ("bee",), "b": ("a",)}, {"bee": "b"}) == [("a", "goes in a circle: a -> b -> a")]
    assert chain_problems({"a": ("b", "c"), "b": ("c",), "c": ()}, {}) == []


@given(st.dictionaries(st.sampled_from("abcde"), st.lists(st.sampled_from("abcde"), unique=True), min_size=1))
def test_a_chain_without_problems_is_finite_and_names_nobody_twice(chains: dict[str, list[str]]) -> None:
    if not chain_problems(chains, {}):
        for model in chains:
            links = expand(model, chains, {})
            assert model not in links and len(links) == len(set(links))
