"""One ledger a device: which devices a replica gets, or why none. Pure.

A replica's need is all or nothing: on each of its GPUs the same share, and in RAM what its processes take beside that.
The GPUs that have most room are chosen, so that engines that run at once share a card last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rewarm.messages import DeviceReport
from rewarm.states import FailureReason
from rewarm.units import format_bytes
from worker.devices.device import RAM, Device
from worker.memory import Holding, Machine, MemoryLedger, Verdict

Others = Mapping[str, Iterable[Holding]]
"""Promises of other agents of this machine, by device."""


@dataclass(frozen=True, slots=True)
class Demand:
    """``gpus`` 0: only RAM. ``named``: these devices and no others, by key or index. ``arithmetic`` is for people."""

    ram_bytes: int
    gpus: int = 0
    gpu_bytes: int = 0  # on each of them
    named: tuple[str, ...] = ()
    arithmetic: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """``needs``: bytes by device. Empty where ``verdict`` says no."""

    verdict: Verdict
    needs: Mapping[str, int] = field(default_factory=dict)


class Ledgers:
    """``lost`` says of devices that do not answer why; they take nothing new."""

    def __init__(self, devices: Mapping[str, Device]) -> None:
        self.devices = dict(devices)
        self.by_device = {key: MemoryLedger(device.budget_bytes, label=device.label) for key, device in devices.items()}
        self.lost: dict[str, str] = {}

    @property
    def ram(self) -> MemoryLedger:
        return self.by_device[RAM]

    @property
    def gpus(self) -> tuple[Device, ...]:
        return tuple(device for key, device in self.devices.items() if key != RAM)

    # -- what is held

    def held(self, replica: str) -> dict[str, Holding]:
        return {key: ledger.holdings[replica] for key, ledger in self.by_device.items() if replica in ledger.holdings}

    def hold(self, replica: str, holdings: Mapping[str, Holding]) -> None:
        for key, holding in holdings.items():
            self.by_device[key].holdings[replica] = holding

    def drop(self, replica: str) -> None:
        for ledger in self.by_device.values():
            ledger.holdings.pop(replica, None)

    def on_lost(self) -> dict[str, str]:
        """Replicas that hold memory of a device that is lost → its key."""
        return {replica: key for key in self.lost for replica in self.by_device[key].holdings}

    # -- may it start

    def choose(self, demand: Demand, readings: Mapping[str, Machine], others: Others) -> Choice:
        """Where a replica can go now. A device without a reading is lost."""
        gpus, refusal = self._candidates(demand)
        if refusal is not None:
            return Choice(refusal)
        ram = self.admit({RAM: demand.ram_bytes}, demand.arithmetic, readings, others)
        if not demand.gpus or ram.reason is FailureReason.NEVER_FITS:
            return Choice(ram, {RAM: demand.ram_bytes} if ram.fits else {})
        verdicts = {gpu.id: self.admit({gpu.id: demand.gpu_bytes}, demand.arithmetic, readings, others) for gpu in gpus}
        fitting = [gpu for gpu in gpus if verdicts[gpu.id].fits]
        if len(fitting) < demand.gpus:
            possible = [key for key, verdict in verdicts.items() if verdict.reason is not FailureReason.NEVER_FITS]
            never = len(possible) < demand.gpus
            reason = FailureReason.NEVER_FITS if never else FailureReason.NO_ROOM
            words = [verdict.message for verdict in verdicts.values() if verdict.reason is reason]
            return Choice(Verdict(reason, "; ".join(dict.fromkeys(words))))
        if not ram.fits:
            return Choice(ram)
        free = self.free_bytes(readings)
        fitting.sort(key=lambda gpu: (-free[gpu.id], gpu.index))
        chosen = sorted(fitting[: demand.gpus], key=lambda gpu: gpu.index or 0)
        return Choice(ram, {RAM: demand.ram_bytes} | {gpu.id: demand.gpu_bytes for gpu in chosen})

    def _candidates(self, demand: Demand) -> tuple[list[Device], Verdict | None]:
        gpus = [gpu for gpu in self.gpus if gpu.id not in self.lost]
        if not demand.gpus:
            return [], None
        if demand.named:
            unknown = [name for name in demand.named if not any(gpu.is_named(name) for gpu in self.gpus)]
            if unknown:
                have = ", ".join(f"{gpu.index} ({gpu.id})" for gpu in self.gpus) or "no GPU"
                words = f"its device {', '.join(unknown)} is none of this worker's, which has {have}"
                return [], Verdict(FailureReason.NEVER_FITS, words)
            gpus = [gpu for gpu in self.gpus if any(gpu.is_named(name) for name in demand.named)]
            gone = [gpu for gpu in gpus if gpu.id in self.lost]
            if gone:
                return [], Verdict(FailureReason.DEVICE_LOST, f"{gone[0].label} is lost: {self.lost[gone[0].id]}")
            if len(gpus) < demand.gpus:
                words = f"two of its devices {', '.join(demand.named)} are the same GPU"
                return [], Verdict(FailureReason.NEVER_FITS, words)
        if len(gpus) < demand.gpus:
            if len(self.gpus) >= demand.gpus:
                words = f"needs {_gpus(demand.gpus)}, and of the {len(self.gpus)} here {len(self.lost)} are lost"
                return [], Verdict(FailureReason.DEVICE_LOST, words)
            words = f"needs {_gpus(demand.gpus)}, this worker has {len(self.gpus)}"
            return [], Verdict(FailureReason.NEVER_FITS, words)
        return gpus, None

    def admit(
        self, needs: Mapping[str, int], arithmetic: str, readings: Mapping[str, Machine], others: Others
    ) -> Verdict:
        """Whether all of ``needs`` (bytes by device) fit now; the first that does not says why."""
        for key, need in needs.items():
            if key in self.lost or key not in readings:
                why = self.lost.get(key, "it does not answer")
                return Verdict(FailureReason.DEVICE_LOST, f"{self.devices[key].label} is lost: {why}")
            verdict = self.by_device[key].admit(need, arithmetic, readings[key], others.get(key, ()))
            if not verdict.fits:
                return verdict
        return Verdict()

    def free_bytes(self, readings: Mapping[str, Machine]) -> dict[str, int]:
        """By device; nothing on one that is lost."""
        return {
            key: ledger.free_bytes(readings[key]) if key in readings and key not in self.lost else 0
            for key, ledger in self.by_device.items()
        }

    def reports(self, readings: Mapping[str, Machine]) -> tuple[DeviceReport, ...]:
        free = self.free_bytes(readings)
        return tuple(self._report(device, readings.get(key), free[key]) for key, device in self.devices.items())

    def _report(self, device: Device, reading: Machine | None, free_bytes: int) -> DeviceReport:
        ledger = self.by_device[device.id]
        used = sum(holding.used_bytes for holding in ledger.holdings.values()) + ledger.spare.used_bytes
        taken = 0 if reading is None else reading.total_bytes - reading.available_bytes
        lost = device.id in self.lost
        return DeviceReport(
            id=device.id,
            kind=device.kind,
            name=device.name,
            index=device.index,
            total_bytes=device.total_bytes,
            budget_bytes=0 if lost else device.budget_bytes,
            promised_bytes=ledger.promised_bytes,
            used_bytes=used,
            others_bytes=max(0, taken - used),
            free_bytes=free_bytes,
            state="lost" if lost else "ok",
            reason=self.lost.get(device.id, ""),
        )


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def needs_words(needs: Mapping[str, int], devices: Mapping[str, Device]) -> str:
    """``4.2 GB on GPU 0, 1.1 GB in RAM``."""
    parts = [
        f"{format_bytes(need)} {'in RAM' if key == RAM else f'on {devices[key].label}'}" for key, need in needs.items()
    ]
    return ", ".join(reversed(parts))
