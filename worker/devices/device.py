"""What a device is, and which ones the configuration means. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rewarm.config import DeviceConfig
from rewarm.errors import DeviceTwice, DeviceUnknown
from rewarm.units import format_bytes
from worker.memory import BUDGET_SHARE, Machine

RAM = "ram"

GPU_BUDGET_SHARE = 0.95
"""Of a GPU's memory. The rest is for what its driver and a display take, which differs by card: an assumption."""

VISIBLE_ENV = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Gpu:
    """As NVML lists it. ``index`` is its place in order of the PCI bus, which ``nvidia-smi`` shows too."""

    uuid: str
    index: int
    name: str
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Device:
    """``id`` is ``ram`` or a GPU's UUID: an index may be another card after the next boot."""

    id: str
    budget_bytes: int
    total_bytes: int
    name: str = ""
    index: int | None = None

    @property
    def kind(self) -> str:
        return RAM if self.id == RAM else "gpu"

    @property
    def label(self) -> str:
        """For people."""
        return "RAM" if self.id == RAM else f"GPU {self.index}"

    def is_named(self, name: str) -> bool:
        """By its index or by its id."""
        return name == self.id or (self.index is not None and name == str(self.index))


def devices_of(
    configured: Sequence[DeviceConfig] | None, ram_budget: int | None, machine: Machine, gpus: Sequence[Gpu], why: str
) -> dict[str, Device]:
    """By id, RAM first. ``why`` says why NVML lists none, where it does not.

    Raise DeviceUnknown for one that is not there, DeviceTwice where two names mean the same.
    """
    out: dict[str, Device] = {}
    named = {entry.id: entry.memory for entry in configured or ()}
    ram = named.pop(RAM, None) or ram_budget or int(machine.total_bytes * BUDGET_SHARE)
    out[RAM] = Device(RAM, ram, machine.total_bytes)
    if configured is None:
        named = {gpu.uuid: None for gpu in gpus}
    for name, budget in named.items():
        gpu = next((gpu for gpu in gpus if name in (gpu.uuid, str(gpu.index))), None)
        if gpu is None:
            raise DeviceUnknown(f"worker.devices: there is no GPU {name} here: {_listed(gpus, why)}")
        if gpu.uuid in out:
            raise DeviceTwice(f"worker.devices: {name} is GPU {gpu.index} ({gpu.uuid}), which is given already")
        share = budget or int(gpu.total_bytes * GPU_BUDGET_SHARE)
        out[gpu.uuid] = Device(gpu.uuid, share, gpu.total_bytes, gpu.name, gpu.index)
    return out


def _listed(gpus: Sequence[Gpu], why: str) -> str:
    if not gpus:
        return why or "NVML lists none"
    return "NVML lists " + ", ".join(f"{gpu.index} ({gpu.uuid}, {format_bytes(gpu.total_bytes)})" for gpu in gpus)


def visible(needs: Mapping[str, int], devices: Mapping[str, Device]) -> dict[str, str]:
    """What an engine's environment says of GPUs: only its own, by UUID; none where it has none. Empty where the
    machine has no GPUs to hide."""
    if all(device.kind == RAM for device in devices.values()):
        return {}
    return {VISIBLE_ENV: ",".join(key for key in needs if key != RAM)}
