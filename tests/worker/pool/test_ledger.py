"""The pool's memory is counted, and still free for who needs it. No process."""

from __future__ import annotations

from rewarm.states import FailureReason
from worker.memory import Holding, Machine, MemoryLedger

MACHINE = Machine(total_bytes=1000, available_bytes=700)


def test_an_engine_that_fits_only_without_the_pool_is_refused_with_the_pool_named() -> None:
    ledger = MemoryLedger(800, spares={"vllm": Holding(300, 200)})
    verdict = ledger.admit(600, "", MACHINE)
    assert verdict.reason is FailureReason.NO_ROOM
    assert "the pool" in verdict.message
    ledger.spares.clear()
    assert ledger.admit(600, "", MACHINE).fits


def test_an_engine_that_fits_beside_it_is_let_in() -> None:
    assert MemoryLedger(800, spares={"vllm": Holding(300, 200)}).admit(400, "", MACHINE).fits


def test_placement_sees_it_as_free() -> None:
    with_pool = MemoryLedger(800, spares={"vllm": Holding(300, 200)}).free_bytes(MACHINE)
    assert with_pool == 800
    without = MemoryLedger(800).free_bytes(Machine(1000, 900))
    assert with_pool == without


def test_pools_of_two_kinds_add_up() -> None:
    ledger = MemoryLedger(800, spares={"vllm": Holding(300, 200), "torch": Holding(100, 100)})
    assert ledger.admit(400, "", MACHINE).fits
    assert not ledger.admit(401, "", MACHINE).fits
    ledger.spares["torch"] = Holding(0)
    assert ledger.admit(500, "", MACHINE).fits, "one that is gone leaves the other's as it was"


def test_what_never_fits_is_not_blamed_on_it() -> None:
    verdict = MemoryLedger(800, spares={"vllm": Holding(300)}).admit(900, "", MACHINE)
    assert verdict.reason is FailureReason.NEVER_FITS
