"""Which devices a replica gets, and the arithmetic of why it gets none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rewarm.states import FailureReason
from worker.devices.device import RAM, Device
from worker.devices.ledgers import Demand, Ledgers
from worker.memory import Holding, Machine

GIB = 2**30
A, B = "GPU-aaaa1111", "GPU-bbbb2222"


def ledgers(*gpus_gib: int, ram_gib: int = 64) -> Ledgers:
    devices = {RAM: Device(RAM, ram_gib * GIB, ram_gib * GIB)}
    for index, (name, size) in enumerate(zip((A, B), gpus_gib, strict=False)):
        devices[name] = Device(name, size * GIB, size * GIB, "card", index)
    return Ledgers(devices)


def empty(ledgers: Ledgers) -> dict[str, Machine]:
    """Nobody uses anything."""
    return {name: Machine(device.total_bytes, device.total_bytes) for name, device in ledgers.devices.items()}


def gpu(gib: float, count: int = 1, named: tuple[str, ...] = (), ram: float = 2) -> Demand:
    return Demand(int(ram * GIB), count, int(gib * GIB), named, f"{gib} GiB (weights and cache)")


def test_the_card_with_most_room_is_taken_and_ram_beside_it() -> None:
    two = ledgers(24, 24)
    two.hold("x", {A: Holding(10 * GIB)})
    choice = two.choose(gpu(12), empty(two), {})
    assert choice.verdict.fits
    assert choice.needs == {RAM: 2 * GIB, B: 12 * GIB}


def test_several_cards_are_taken_together_or_not_at_all() -> None:
    two = ledgers(24, 24)
    assert set(two.choose(gpu(20, 2), empty(two), {}).needs) == {RAM, A, B}
    two.hold("x", {A: Holding(10 * GIB)})
    refused = two.choose(gpu(20, 2), empty(two), {})
    assert refused.verdict.reason is FailureReason.NO_ROOM
    assert "GPU 0" in refused.verdict.message and "x 10.0 GiB is promised" in refused.verdict.message
    assert refused.needs == {}


def test_what_no_card_can_ever_hold_says_so_with_the_arithmetic_however_full_they_are() -> None:
    mixed = ledgers(24, 8)
    mixed.hold("x", {A: Holding(20 * GIB)})
    full = mixed.choose(gpu(10), empty(mixed), {})
    assert full.verdict.reason is FailureReason.NO_ROOM, "the larger card could hold it"
    never = mixed.choose(gpu(25), empty(mixed), {})
    assert never.verdict.reason is FailureReason.NEVER_FITS
    assert "25 GiB (weights and cache); this worker's whole budget of GPU 0 is 24.0 GiB" in never.verdict.message
    assert mixed.choose(gpu(10, 2), empty(mixed), {}).verdict.reason is FailureReason.NEVER_FITS


def test_a_named_card_or_none() -> None:
    two = ledgers(24, 24)
    assert A in two.choose(gpu(12, named=("0",)), empty(two), {}).needs
    assert B in two.choose(gpu(12, named=(B,)), empty(two), {}).needs
    two.hold("x", {A: Holding(20 * GIB)})
    assert two.choose(gpu(12, named=("0",)), empty(two), {}).verdict.reason is FailureReason.NO_ROOM
    strange = two.choose(gpu(12, named=("7",)), empty(two), {}).verdict
    assert strange.reason is FailureReason.NEVER_FITS
    assert "device 7 is none of this worker's" in strange.message
    twice = two.choose(gpu(1, 2, named=("0", A)), empty(two), {}).verdict
    assert (twice.reason, "the same GPU" in twice.message) == (FailureReason.NEVER_FITS, True)


def test_more_cards_than_there_are() -> None:
    verdict = ledgers(24).choose(gpu(12, 2), empty(ledgers(24)), {}).verdict
    assert (verdict.reason, verdict.message) == (FailureReason.NEVER_FITS, "needs 2 GPUs, this worker has 1")


def test_what_others_use_on_a_card_is_subtracted_measured_and_promised() -> None:
    one = ledgers(24)
    readings = empty(one) | {A: Machine(24 * GIB, 15 * GIB)}
    assert one.choose(gpu(15), readings, {}).verdict.fits
    assert one.choose(gpu(15), readings, {A: [Holding(GIB)]}).verdict.reason is FailureReason.NO_ROOM
    assert one.choose(gpu(15), readings, {RAM: [Holding(GIB)]}).verdict.fits, "another device's"


def test_too_little_ram_beside_a_free_card_is_no_room() -> None:
    small = ledgers(24, ram_gib=4)
    small.hold("x", {RAM: Holding(3 * GIB)})
    verdict = small.choose(gpu(12), empty(small), {}).verdict
    assert verdict.reason is FailureReason.NO_ROOM and "of RAM" in verdict.message
    assert small.choose(gpu(12, ram=5), empty(small), {}).verdict.reason is FailureReason.NEVER_FITS


def test_a_lost_card_takes_nothing_and_the_other_goes_on() -> None:
    two = ledgers(24, 24)
    two.hold("x", {RAM: Holding(GIB), A: Holding(10 * GIB)})
    two.hold("y", {RAM: Holding(GIB), B: Holding(10 * GIB)})
    two.lost[A] = "GPU is lost"
    readings = {name: reading for name, reading in empty(two).items() if name != A}
    assert two.on_lost() == {"x": A}
    assert B in two.choose(gpu(12), readings, {}).needs
    named = two.choose(gpu(12, named=("0",)), readings, {}).verdict
    assert (named.reason, named.message) == (FailureReason.DEVICE_LOST, "GPU 0 is lost: GPU is lost")
    assert two.choose(gpu(1, 2), readings, {}).verdict.reason is FailureReason.DEVICE_LOST
    report = {device.id: device for device in two.reports(readings)}
    assert (report[A].state, report[A].budget_bytes, report[A].free_bytes) == ("lost", 0, 0)
    assert report[B].state == "ok"


def test_a_report_says_what_is_promised_used_and_others() -> None:
    one = ledgers(24)
    one.hold("x", {RAM: Holding(GIB), A: Holding(10 * GIB, 6 * GIB)})
    report = one.reports(empty(one) | {A: Machine(24 * GIB, 15 * GIB)})[1]
    assert (report.promised_bytes, report.used_bytes, report.others_bytes) == (10 * GIB, 6 * GIB, 3 * GIB)
    assert report.free_bytes == 11 * GIB  # 15 are available, of which 4 are promised and not used yet


def test_only_ram_needs_no_gpu() -> None:
    none = ledgers()
    assert none.choose(Demand(GIB), empty(none), {}).needs == {RAM: GIB}


sizes = st.integers(min_value=0, max_value=30)


@given(
    budgets=st.lists(st.integers(1, 24), min_size=1, max_size=2),
    demands=st.lists(st.tuples(sizes, st.integers(0, 2), st.integers(0, 8)), max_size=12),
)
def test_whatever_is_asked_no_budget_is_ever_exceeded(budgets: list[int], demands: list[tuple[int, int, int]]) -> None:
    have = ledgers(*budgets, ram_gib=16)
    for number, (gib, count, ram) in enumerate(demands):
        choice = have.choose(gpu(gib, count, ram=ram), empty(have), {})
        assert choice.verdict.fits == bool(choice.needs)
        have.hold(f"r{number}", {name: Holding(size) for name, size in choice.needs.items()})
        if choice.verdict.fits:
            assert len(choice.needs) == 1 + count
    for ledger in have.by_device.values():
        assert ledger.promised_bytes <= ledger.budget_bytes
    assert all(free >= 0 for free in have.free_bytes(empty(have)).values())
