"""What of this machine replicas may live in, with nothing configured."""

from __future__ import annotations

from contextlib import closing

from worker.devices.device import Device, devices_of
from worker.devices.nvml import SystemNvml
from worker.memory import read_machine


def devices_here() -> list[Device]:
    """RAM first, then every GPU that the driver lists. Blocks for some milliseconds."""
    with closing(SystemNvml()) as nvml:
        return list(devices_of(None, None, read_machine(), nvml.gpus(), nvml.why_none).values())
