"""What a replica of a model takes on a worker, by device, and the ways in which it could lie there. Pure.

It lies on one device, or on as many GPUs as it asks for, a like share on each, with what its processes take in RAM
beside that. So sums over devices say nothing: two GPUs with 10 GB free each have no room for 16.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from controller.round import Round
from controller.state import Needs
from rewarm.messages import CatalogueEntry, DeviceReport, WorkerBeat

RAM = "ram"

IN_RAM_ENGINES = ("torch",)
"""These compute on the CPU only. All others take a GPU where there is one and they are not told otherwise."""


@dataclass(frozen=True, slots=True)
class Demand:
    """``gpus`` 0: only RAM. ``named``: these GPUs and no others, by id or index."""

    ram_bytes: int
    gpus: int = 0
    gpu_bytes: int = 0  # on each of them
    named: tuple[str, ...] = ()


def demand(round_: Round, entry: CatalogueEntry, beat: WorkerBeat) -> Demand:
    """As its agent will count it, as far as that is known before: how many GPUs, and whose, the specification says;
    else the last agent that counted it on a machine with GPUs; else it is taken for one."""
    spec, total = entry.spec, round_.need(entry)
    counted = round_.of(entry.model).gpu_needs
    if RAM in spec.devices or spec.engine in IN_RAM_ENGINES or not _cards(beat):
        gpus = 0
    elif spec.devices or spec.gpus:
        gpus = len(spec.devices) or spec.gpus
    else:
        gpus = 1 if counted is None else sum(device != RAM for device in counted)
    if not gpus:
        return Demand(total)
    beside = 0 if counted is None or all(device == RAM for device in counted) else counted.get(RAM, 0)
    return Demand(beside, gpus, -(-total // gpus), spec.devices)


def ways(round_: Round, entry: CatalogueEntry, beat: WorkerBeat) -> list[Needs]:
    """Bytes by device, for each choice of devices whose budgets are large enough. None: it never fits there.

    While nobody knows what it takes there is one way, which takes nothing; and of a pod's worker only that one knows.
    """
    wanted = demand(round_, entry, beat)
    if beat.only or not (wanted.ram_bytes or wanted.gpu_bytes):
        return [{}]
    budgets = {device.id: device.budget_bytes for device in beat.devices}
    if wanted.ram_bytes > budgets.get(RAM, 0):
        return []
    in_ram = {RAM: wanted.ram_bytes} if wanted.ram_bytes else {}
    cards = [card.id for card in _candidates(wanted, beat) if wanted.gpu_bytes <= card.budget_bytes]
    return [in_ram | dict.fromkeys(some, wanted.gpu_bytes) for some in combinations(cards, wanted.gpus)]


def reach(round_: Round, entry: CatalogueEntry, beat: WorkerBeat) -> int:
    """How large a share of it could be at most, on the devices that it would lie on."""
    wanted = demand(round_, entry, beat)
    if not wanted.gpus:
        return max((device.budget_bytes for device in beat.devices if device.id == RAM), default=0)
    budgets = sorted((card.budget_bytes for card in _candidates(wanted, beat)), reverse=True)
    return budgets[wanted.gpus - 1] if len(budgets) >= wanted.gpus else 0


def plus(*some: Needs) -> Needs:
    out: dict[str, int] = {}
    for one in some:
        for device, size in one.items():
            out[device] = out.get(device, 0) + size
    return out


def less(free: Needs, taken: Needs) -> Needs:
    """Below zero where more is taken than there is."""
    return plus(free, {device: -size for device, size in taken.items()})


def minus(needs: Needs, other: Needs) -> Needs:
    """What is missing where ``other`` is there: nothing below zero, and no device of which nothing is missing."""
    return {device: size - other.get(device, 0) for device, size in needs.items() if size > other.get(device, 0)}


def roomiest(some: Iterable[Needs], free: Needs) -> Needs:
    """The way that leaves most free on the fullest of its devices: as its agent chooses."""
    return max(some, key=lambda way: left(way, free), default={})


def left(way: Needs, free: Needs) -> int:
    """On the fullest of its devices; where nobody knows what it takes, on the emptiest that there is."""
    if not way:
        return max(free.values(), default=0)
    return min(free.get(device, 0) - size for device, size in way.items())


def label(beat: WorkerBeat, device: str) -> str:
    """Where it is, for people: ``w1``, or ``GPU 0 of w1``."""
    card = next((one for one in beat.devices if one.id == device and one.id != RAM), None)
    return beat.worker if card is None else f"GPU {card.index} of {beat.worker}"


def _cards(beat: WorkerBeat) -> list[DeviceReport]:
    return [device for device in beat.devices if device.id != RAM]


def _candidates(wanted: Demand, beat: WorkerBeat) -> list[DeviceReport]:
    cards = [card for card in _cards(beat) if card.state == "ok"]
    if not wanted.named:
        return cards
    return [card for card in cards if card.id in wanted.named or str(card.index) in wanted.named]
