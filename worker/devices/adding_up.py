"""Whether a configuration's budgets add up on this machine: for ``rewarm check``, and before a worker starts.

:func:`problems` is pure; :func:`problems_here` asks NVML, ``/proc`` and the headers of the checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rewarm.config import Config, catalogue
from rewarm.errors import BudgetExceeded, DeviceTwice, DeviceUnknown
from rewarm.states import FailureReason
from rewarm.units import format_bytes
from worker.devices.device import RAM, Device, devices_of
from worker.devices.ledgers import Demand, Ledgers
from worker.devices.nvml import Nvml, SystemNvml
from worker.engines.estimate import CannotEstimate, estimate
from worker.memory import Holding, Machine, read_machine


@dataclass(frozen=True, slots=True)
class Problem:
    """``code`` is of ``rewarm.errors``, or a failure's reason; ``field`` is where in the file."""

    code: str
    field: str
    message: str


@dataclass(frozen=True, slots=True)
class Asked:
    """One model: what a replica needs, how many are always to be loaded, and which field says how large it is."""

    demand: Demand
    kept: int = 0
    by: str = "source"


def problems(devices: Mapping[str, Device], models: Mapping[str, Asked]) -> list[Problem]:
    """On an idle machine: models that never fit, and those kept loaded that do not fit together."""
    out = [
        Problem(BudgetExceeded.code, "worker.memory" if device.id == RAM else "worker.devices", _too_much(device))
        for device in devices.values()
        if device.budget_bytes > device.total_bytes
    ]
    idle = {name: Machine(device.total_bytes, device.total_bytes) for name, device in devices.items()}
    never = set()
    for model, asked in models.items():
        verdict = Ledgers(devices).choose(asked.demand, idle, {}).verdict
        if verdict.reason is FailureReason.NEVER_FITS:
            never.add(model)
            out.append(Problem(verdict.reason.value, f"models.{model}.{asked.by}", verdict.message))
    together = Ledgers(devices)
    kept: list[str] = []
    for model, asked in models.items():
        for number in range(0 if model in never else asked.kept):
            choice = together.choose(asked.demand, idle, {})
            if not choice.verdict.fits:
                words = f"it stays loaded (`pinned`, `min_replicas`) beside {', '.join(kept)}: {choice.verdict.message}"
                out.append(Problem(BudgetExceeded.code, f"models.{model}", words))
                break
            kept.append(model)
            together.hold(f"{model}-{number}", {name: Holding(need) for name, need in choice.needs.items()})
    return out


def asked_of(config: Config, gpus: int) -> dict[str, Asked]:
    """Of the models whose weights this machine can read. One that contradicts itself says so when it is loaded."""
    out: dict[str, Asked] = {}
    for name, entry in catalogue(config).items():
        if not entry.placed:
            continue  # on no device of ours, or counted with its base
        try:
            demand = estimate(entry.spec, gpus).demand
        except (CannotEstimate, OSError):
            continue
        kept = max(entry.policy.min_replicas, 1 if entry.policy.pinned else 0)
        out[name] = Asked(demand, kept, "source" if entry.spec.memory_bytes is None else "memory")
    return out


def problems_here(config: Config, nvml: Nvml | None = None) -> list[Problem]:
    """Blocks for some milliseconds."""
    nvml = SystemNvml() if nvml is None else nvml
    try:
        devices = devices_of(config.worker.devices, config.worker.memory, read_machine(), nvml.gpus(), nvml.why_none)
    except (DeviceUnknown, DeviceTwice) as error:
        return [Problem(error.code, "worker.devices", error.message)]
    return problems(devices, asked_of(config, len(devices) - 1))


def _too_much(device: Device) -> str:
    of = "this machine" if device.id == RAM else device.label
    return f"a budget of {format_bytes(device.budget_bytes)} of {device.label} is more than {of} has " + (
        f"({format_bytes(device.total_bytes)})"
    )
