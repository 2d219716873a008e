"""A limit a minute: what one gateway lets pass, and what several do that hear of each other once a second."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.limits import Window


def test_what_was_spent_is_forgotten_after_a_minute() -> None:
    window = Window(10)
    window.spend(6, second=100)
    window.spend(4, second=130)
    assert window.left(140) == 0
    assert window.wait_s(5, 140) == 20, "the six of second 100 are free again at 160"
    assert window.wait_s(7, 140) == 50
    assert window.wait_s(6, 160) == 0
    assert window.reset_s(160) == 30


def test_an_answer_that_took_less_gives_the_rest_back_while_it_counts() -> None:
    window = Window(100)
    window.spend(90, second=10)
    window.correct(-80, spent_at=10, second=40)
    assert window.used(40) == 10
    window.correct(-10, spent_at=10, second=75)
    assert window.used(75) == 0, "a refund of what is forgotten makes no room above the limit"
    window.correct(30, spent_at=10, second=75)
    assert window.used(75) == 30, "what came on top counts from when it is known"


def test_between_two_words_to_the_others_only_a_share_is_spent() -> None:
    window = Window(100)
    window.learn({}, {50: 40}, gateways=3)
    window.spend(15, second=60)
    assert window.wait_s(5, 60) == 0
    assert window.wait_s(6, 60) == 1, "20 of the 60 that are left are this gateway's until it has told of them"
    window.learn(window.mine(60), {50: 40}, gateways=3)
    assert window.wait_s(15, 61) == 0


def test_a_request_larger_than_a_share_is_let_in_once_all_is_told() -> None:
    window = Window(100)
    window.learn({}, {}, gateways=4)
    assert window.wait_s(90, 5) == 0


def test_without_news_of_the_others_theirs_are_forgotten_too() -> None:
    window = Window(10)
    window.learn({}, {100: 10}, gateways=2)
    assert window.wait_s(1, 110) == 50
    assert window.wait_s(1, 160) == 0


@given(st.integers(1, 30), st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), max_size=80))
def test_one_gateway_never_lets_more_than_the_limit_pass_in_any_minute(
    limit: int, asked: list[tuple[int, int]]
) -> None:
    window, now, passed = Window(limit), 0, list[tuple[int, int]]()
    for pause, amount in asked:
        now += pause
        wait = window.wait_s(amount, now)
        assert wait <= 60
        if wait == 0:
            window.spend(amount, now)
            passed.append((now, amount))
        assert sum(amount for at, amount in passed if at > now - 60) <= limit


@given(st.integers(2, 4), st.integers(1, 60), st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=300))
def test_several_gateways_stay_within_the_stated_bound(
    gateways: int, limit: int, steps: list[tuple[int, bool]]
) -> None:
    """At each step a gateway is asked for one request; each tells the others once a second, at a moment of its own."""
    windows = [Window(limit) for _ in range(gateways)]
    for window in windows:
        window.learn({}, {}, gateways)
    told: list[dict[int, int]] = [{} for _ in windows]
    passed: list[int] = []
    for n, (which, next_second) in enumerate(steps):
        which %= gateways
        now = sum(pause for _, pause in steps[:n])
        if next_second:
            for i, window in enumerate(windows):
                told[i] = window.mine(now)
                others: dict[int, int] = {}
                for j, spent in enumerate(told):
                    for at, amount in spent.items() if j != i else ():
                        others[at] = others.get(at, 0) + amount
                window.learn(told[i], others, gateways)
        if windows[which].wait_s(1, now) == 0:
            windows[which].spend(1, now)
            passed.append(now)
        bound = limit + limit * (gateways - 1) / gateways + gateways - 1
        assert sum(1 for at in passed if at > now - 60) <= bound
