"""How much is too much, and which cores to hold an engine to."""

from __future__ import annotations

from rewarm.messages import ReplicaSpec
from worker.engines.estimate import Estimate
from worker.limits.sizes import Limits, cores_for, limits_of, threads_for
from worker.limits.watchdog import exceeds

GIB = 2**30


def spec(limit: int | None = None, cpus: float | None = None) -> ReplicaSpec:
    return ReplicaSpec(model="m", engine="command", served_names=("m",), slots=1, memory_limit_bytes=limit, cpus=cpus)


def test_by_default_well_above_the_need_and_none_where_that_was_assumed() -> None:
    assert limits_of(spec(), Estimate(4 * GIB)) == Limits(7 * GIB)
    assert limits_of(spec(), Estimate(4 * GIB, assumed=True)) == Limits()
    assert limits_of(spec(), Estimate(4 * GIB, gpus=1)) == Limits()


def test_as_configured() -> None:
    assert limits_of(spec(5 * GIB, 1.5), Estimate(4 * GIB, gpus=1)) == Limits(5 * GIB, 1.5)
    assert limits_of(spec(0), Estimate(4 * GIB)) == Limits()


def test_the_cores_that_fewest_others_have() -> None:
    assert cores_for(1.5, {0, 1, 2, 3}, []) == {0, 1}
    assert cores_for(1, {0, 1, 2, 3}, [{0, 1}, {0, 2}]) == {3}
    assert cores_for(8, {4, 5}, []) == {4, 5}
    assert (threads_for(0.5), threads_for(3.9)) == (1, 3)


def test_the_exact_look_is_taken_only_where_the_rough_one_is_over() -> None:
    looks: list[str] = []

    def look(name: str, found: int) -> int:
        looks.append(name)
        return found

    assert not exceeds(10, lambda: look("rough", 9), lambda: look("exact", 99))
    assert looks == ["rough"]
    assert not exceeds(10, lambda: look("rough", 11), lambda: look("exact", 9)), "shared pages were counted twice"
    assert exceeds(10, lambda: look("rough", 11), lambda: look("exact", 11))
