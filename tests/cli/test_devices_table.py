"""`rewarm ps` says of each device what may be used, what is promised, and what is left."""

from __future__ import annotations

from rich.console import Console

from rewarm.cli.devices_table import devices
from rewarm.messages import DeviceReport, to_json

GIB = 2**30


def shown(*reports: DeviceReport) -> str:
    table = devices([{"worker": "w1", "devices": [to_json(report) for report in reports]}])
    console = Console(width=160, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_ram_a_card_and_one_that_is_lost() -> None:
    text = shown(
        DeviceReport(id="ram", kind="ram", budget_bytes=16 * GIB, promised_bytes=4 * GIB, used_bytes=3 * GIB,
                     others_bytes=2 * GIB, free_bytes=12 * GIB),
        DeviceReport(id="GPU-1", kind="gpu", index=0, name="NVIDIA RTX 4090", budget_bytes=22 * GIB),
        DeviceReport(id="GPU-2", kind="gpu", index=1, state="lost", reason="GPU is lost"),
    )  # fmt: skip
    head, ram, card, lost = text.splitlines()
    assert head.split() == ["DEVICE", "WORKER", "BUDGET", "PROMISED", "USED", "OTHERS", "FREE"]
    assert ram.split() == ["RAM", "w1", "16.0", "GiB", "4.0", "GiB", "3.0", "GiB", "2.0", "GiB", "12.0", "GiB"]
    assert card.startswith("GPU 0") and "NVIDIA RTX 4090" in card
    assert lost.startswith("GPU 1") and "lost: GPU is lost" in lost


def test_workers_that_say_nothing_of_devices() -> None:
    assert devices([{"worker": "w1"}]) is None
