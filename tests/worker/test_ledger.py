"""The ledger of a gate's slots: who may run now."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tests.depth import examples
from worker.gate import GRANT_EXPIRY_S, GRANT_MARGIN_S, Busy, Ledger

LIFETIME_S = GRANT_EXPIRY_S + GRANT_MARGIN_S


def test_a_direct_request_runs_while_there_is_room() -> None:
    ledger = Ledger(2, now=0.0)
    assert ledger.admit(1, 0.0) is None
    assert ledger.admit(1, 0.0) is None
    assert ledger.admit(0, 0.0) is Busy.FULL
    ledger.finish(5.0)
    assert ledger.admit(1, 5.0) is None
    assert (ledger.running, ledger.served, ledger.peak, ledger.last_activity_s) == (2, 1, 2, 5.0)


def test_a_direct_request_does_not_overtake_a_ticket_of_its_band_or_a_higher_one() -> None:
    ledger = Ledger(2, now=0.0)
    ledger.waiting_band = 1
    assert ledger.admit(1, 0.0) is Busy.WAITING
    assert ledger.admit(2, 0.0) is Busy.WAITING
    assert ledger.admit(0, 0.0) is None


def test_a_reserved_slot_is_taken_until_it_is_redeemed_released_or_expired() -> None:
    ledger = Ledger(3, now=0.0)
    assert ledger.reserve(["a", "b", "c", "d"], 0.0) == ("a", "b", "c")
    assert ledger.admit(0, 0.0) is Busy.FULL
    assert ledger.redeem("a", 1.0) is None
    assert ledger.redeem("a", 1.0) is Busy.GRANT
    assert ledger.release(["b", "a", "unknown"]) == 1
    assert (ledger.running, ledger.reserved, ledger.free) == (1, 1, 1)
    assert ledger.redeem("c", LIFETIME_S) is Busy.GRANT
    assert ledger.free == 2


def test_draining_refuses_the_new_and_honours_what_was_promised() -> None:
    ledger = Ledger(2, now=0.0)
    ledger.reserve(["a"], 0.0)
    assert ledger.drain()
    assert ledger.admit(0, 0.0) is Busy.DRAINING
    assert ledger.reserve(["b"], 0.0) == ()
    assert ledger.redeem("a", 1.0) is None
    ledger.undrain(2.0)
    assert ledger.admit(0, 2.0) is None


def test_an_idle_drain_holds_only_if_nothing_happened_since() -> None:
    ledger = Ledger(2, now=1.0)
    ledger.admit(0, 2.0)
    assert not ledger.drain(if_last_activity_s=1.0)
    ledger.finish(3.0)
    assert not ledger.drain(if_last_activity_s=1.0)
    ledger.reserve(["a"], 3.0)
    assert not ledger.drain(if_last_activity_s=3.0)
    ledger.release(["a"])
    assert ledger.drain(if_last_activity_s=3.0)
    assert ledger.draining


class LedgerMachine(RuleBasedStateMachine):
    """Any order of calls: never more than the slots, every slot comes back, no grant works twice."""

    grants = Bundle("grants")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.slots = 3
        self.ledger = Ledger(self.slots, 0.0)
        self.running = 0
        self.issued: dict[str, float] = {}
        self.used: set[str] = set()
        self.number = 0

    @rule(seconds=st.floats(0.0, 2.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(band=st.integers(0, 2))
    def direct(self, band: int) -> None:
        room = self.slots - self.running - self._live()
        busy = self.ledger.admit(band, self.now)
        waits = self.ledger.waiting_band is not None and band >= self.ledger.waiting_band
        assert (busy is None) == (room > 0 and not self.ledger.draining and not waits)
        self.running += busy is None

    @rule(target=grants, k=st.integers(1, 4))
    def reserve(self, k: int) -> tuple[str, ...]:
        ids = [f"g{self.number + i}" for i in range(k)]
        self.number += k
        room = self.slots - self.running - self._live()
        taken = self.ledger.reserve(ids, self.now)
        assert len(taken) == (0 if self.ledger.draining else min(k, max(0, room)))
        self.issued |= dict.fromkeys(taken, self.now + LIFETIME_S)
        return taken

    @rule(some=grants)
    def redeem(self, some: tuple[str, ...]) -> None:
        for grant in some:
            good = grant in self.issued and self.issued[grant] > self.now
            busy = self.ledger.redeem(grant, self.now)
            assert (busy is None) == good
            if good:
                del self.issued[grant]
                self.running += 1

    @rule(some=consumes(grants))
    def release(self, some: tuple[str, ...]) -> None:
        self.ledger.release(some)
        for grant in some:
            self.issued.pop(grant, None)

    @rule()
    def finish(self) -> None:
        if self.running:
            self.ledger.finish(self.now)
            self.running -= 1
            assert self.ledger.last_activity_s == self.now

    @rule(band=st.none() | st.integers(0, 2))
    def waiting(self, band: int | None) -> None:
        self.ledger.waiting_band = band

    @rule(draining=st.booleans())
    def drain(self, draining: bool) -> None:
        if draining:
            self.ledger.drain()
        else:
            self.ledger.undrain(self.now)

    @invariant()
    def never_more_than_the_slots(self) -> None:
        state = self.ledger.state(self.now)
        assert state.running == self.running <= self.slots
        assert state.reserved == self._live()
        assert state.running + state.reserved <= self.slots
        assert state.peak <= self.slots

    def _live(self) -> int:
        return sum(until > self.now for until in self.issued.values())


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=examples(60), stateful_step_count=40)


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_repeated_ids_in_one_reservation_take_one_slot(ids: list[str]) -> None:
    ledger = Ledger(8, 0.0)
    assert len(ledger.reserve(ids, 0.0)) == len(set(ids))
