"""What placement reads off a heartbeat of a machine with GPUs, and of one without."""

from __future__ import annotations

from rewarm.messages import DeviceReport
from worker import beats

RAM = DeviceReport(id="ram", kind="ram", budget_bytes=80, free_bytes=70)
CARDS = (
    DeviceReport(id="GPU-1", kind="gpu", index=0, budget_bytes=24, free_bytes=20),
    DeviceReport(id="GPU-2", kind="gpu", index=1, budget_bytes=24, free_bytes=4),
)


def sums(*devices: DeviceReport) -> tuple[int, int]:
    beat = beats.beat("w", "b", "h", 1, devices, (), draining=False)
    return beat.memory_budget_bytes, beat.memory_free_bytes


def test_the_memory_that_is_shared_out_is_that_of_the_gpus_where_there_are_any() -> None:
    assert sums(RAM) == (80, 70)
    assert sums(RAM, *CARDS) == (48, 24)
