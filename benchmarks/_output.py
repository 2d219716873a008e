"""How results leave a benchmark: one JSON document for programs, a table for people."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_LOAD_BEFORE = os.getloadavg()[0]
"""Of the last minute. Far above 0, others used the machine too, and the figures say less."""


def arguments(doc: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.add_argument("--rounds", type=int, default=rounds, help="interleaved rounds; medians are reported")
    return parser


def note(text: str) -> None:
    """Progress, on stderr: stdout is the result's."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_before": round(_LOAD_BEFORE, 2),
    }


def emit(name: str, result: dict[str, Any], tables: Sequence[Table], as_json: bool) -> None:
    document = {"benchmark": name, "date": time.strftime("%Y-%m-%d"), "machine": machine(), **result}
    if as_json:
        print(json.dumps(document, indent=1))
        return
    console = Console(width=None if sys.stdout.isatty() else 140)
    for table in tables:
        console.print(table)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> Table:
    out = Table(title=title, caption=caption or None, title_justify="left", caption_justify="left")
    for index, column in enumerate(columns):
        out.add_column(column, justify="right" if index else "left", no_wrap=index == 0)
    for row in rows:
        out.add_row(*row)
    return out


def bar(share: float, width: int = 40) -> str:
    """A text bar for a share 0..1."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
