"""The document's tables come from the benchmarks' JSON, and only they change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks._output import bar
from benchmarks._processes import ROOT
from benchmarks._stats import median, quantile, spread

MACHINE = {"cpu": "Some CPU", "cores": 2, "memory_gib": 8.0, "kernel": "6.1.0-9", "python": "3.11.7"}
COMMON = {"date": "2026-01-02", "machine": MACHINE, "rounds": 3, "met": True}
HELD: dict[str, Any] = {
    **COMMON,
    "requests": 2000,
    "body_bytes": 250,
    "target_kib": 40.0,
    "held": [{"name": "stream", "kib_per_request": 17.3, "kib_second_wave": 0.5, "rounds_kib": [17.3]}],
}


def test_a_part_is_replaced_and_the_rest_is_left(tmp_path: Path) -> None:
    (tmp_path / "held.json").write_text(json.dumps(HELD))
    text = "# Title\n<!-- hot_path -->\nkept\n<!-- /hot_path -->\n<!-- held -->\nold\n<!-- /held -->\nend\n"
    new, done = report.render(text, tmp_path)
    assert done == ["held"]
    assert "kept" in new
    assert "old" not in new
    assert "| stream | 17.3 | +0.5 |" in new
    assert "Target: ≤ 40 KiB: met." in new
    assert new.startswith("# Title\n")
    assert new.endswith("<!-- /held -->\nend\n")
    assert report.render(new, tmp_path)[0] == new, "a second time changes nothing"


def test_a_document_without_the_part_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "held.json").write_text(json.dumps(HELD))
    with pytest.raises(ValueError, match="0 parts named held"):
        report.render("nothing here", tmp_path)


def test_the_document_has_a_place_for_every_benchmark() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    for name in report.PARTS:
        assert text.count(f"<!-- {name} -->") == text.count(f"<!-- /{name} -->") == 1
        assert (ROOT / "benchmarks" / f"{name.removesuffix('_large')}.py").exists()


def test_a_table_of_starts_and_a_picture_of_them() -> None:
    starts = {
        "stock": {"first_token_s": 20.0, "spread": 0.1, "times_faster": 1.0},
        "both": {
            "first_token_s": 0.4,
            "spread": 0.05,
            "times_faster": 50.0,
            "warm_s": 0.1,
            "times_warm": 4.0,
            "phases_s": {"initialising": 0.1, "starting": 0.2},
        },
    }
    text = report.cold_start({"starts": starts, "model": "m", "dtype": "auto", "weights_bytes": 10**9})
    assert "| both | 0.40 | 50.0 | 0.100 | 4.00 | 5% | starting 0.20, initialising 0.10 |" in text
    assert "stock  20.00 s  ████" in text
    assert "1,000 MB of weights" in text


def test_statistics() -> None:
    assert median([3, 1, 2]) == 2
    assert quantile(range(100), 0.99) == 99
    assert spread([90, 100, 110]) == pytest.approx(0.1)
    assert bar(0.5, width=4) == "██"
    assert bar(0.0) == ""


def test_a_run_without_rounds_is_told_without_them(tmp_path: Path) -> None:
    look = {"agent_bytes": 2**20, "zygote_bytes": 2**21, "pool_bytes": 2**22, "processes": 3, "agent_descriptors": 9}
    run = {name: value for name, value in COMMON.items() if name != "rounds"}
    run |= {"answers": 2, "wrong_answers": 0, "seconds_a_cycle": 2.0, "eta_median_error": 0.1, "eta_wakes": 1}
    run |= {"growth_bytes_per_100": 2**19, "held": [look | {"cycle": 0, "files": []}]}
    (tmp_path / "cycles.json").write_text(json.dumps(run))
    new, done = report.render("<!-- cycles -->\n<!-- /cycles -->\n", tmp_path)
    assert done == ["cycles"]
    assert "| 0 | 1.0 | 2.0 | 4.0 | 3 | 9 | 0 |" in new
    assert "grew 0.50 MiB in 100 cycles" in new
    assert "Python 3.11.7.*" in new
