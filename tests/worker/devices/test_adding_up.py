"""Budgets that do not add up are told before anything is loaded."""

from __future__ import annotations

from rewarm.config import parse
from tests.worker.devices.fake_nvml import GIB
from worker.devices.adding_up import Asked, problems, problems_here
from worker.devices.device import RAM, Device
from worker.devices.ledgers import Demand

CARD = "GPU-aaaa1111"
DEVICES = {RAM: Device(RAM, 16 * GIB, 32 * GIB), CARD: Device(CARD, 24 * GIB, 24 * GIB, "card", 0)}


def on_card(gib: int) -> Demand:
    return Demand(GIB, 1, gib * GIB, arithmetic=f"{gib} GiB")


def test_models_that_are_always_loaded_must_fit_together() -> None:
    fine = {"a": Asked(on_card(12), kept=1), "b": Asked(on_card(12), kept=1), "c": Asked(on_card(12))}
    assert problems(DEVICES, fine) == []
    (found,) = problems(DEVICES, fine | {"c": Asked(on_card(12), kept=1)})
    assert (found.code, found.field) == ("budget_exceeded", "models.c")
    assert "beside a, b: needs 12 GiB; of the budget of 24.0 GiB of GPU 0 only 0 B is left" in found.message
    (replicas,) = problems(DEVICES, {"a": Asked(on_card(12), kept=3)})
    assert replicas.field == "models.a"


def test_a_model_that_never_fits_is_told_once() -> None:
    (found,) = problems(DEVICES, {"big": Asked(on_card(30), kept=1)})
    assert (found.code, found.field) == ("never_fits", "models.big.source")


def test_a_budget_above_what_the_device_has() -> None:
    (found,) = problems({RAM: Device(RAM, 40 * GIB, 32 * GIB)}, {})
    assert (found.code, found.field) == ("budget_exceeded", "worker.memory")
    assert "40.0 GiB of RAM is more than this machine has (32.0 GiB)" in found.message


def test_a_gpu_that_is_not_there() -> None:
    (found,) = problems_here(parse("worker: {devices: [{id: 97}]}"))
    assert (found.code, found.field) == ("device_unknown", "worker.devices")


def test_pinned_models_and_those_with_replicas_at_all_times_are_kept() -> None:
    text = """
worker: {memory: 3GiB, devices: []}
models:
  a: {engine: command, cmd: "a ${PORT}", memory: 2GiB, pinned: true}
  b: {engine: command, cmd: "b ${PORT}", memory: 2GiB, min_replicas: 1}
  c: {engine: command, cmd: "c ${PORT}", memory: 2GiB}
"""
    (found,) = problems_here(parse(text))
    assert (found.code, found.field) == ("budget_exceeded", "models.b")
    assert "it stays loaded (`pinned`, `min_replicas`) beside a: needs 2.0 GiB" in found.message
