"""Writes the tables of docs/benchmarks.md from the benchmarks' JSON.

    python -m benchmarks.report [FOLDER] [--docs docs/benchmarks.md]

FOLDER (by default benchmarks/results) holds ``hot_path.json``, ``held.json``, ``cold_start.json`` (of the large model
``cold_start_large.json``), ``cycles.json``, ``queue.json``, ``eta.json``, ``load_guard.json``, ``six_models.json`` and
``never_fits.json`` as ``--json`` prints them. In the document, what stands between ``<!-- NAME -->`` and
``<!-- /NAME -->`` is replaced; a missing file leaves its part as it is.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks._output import bar
from benchmarks._processes import ROOT
from rewarm.states import ReplicaState

Result = dict[str, Any]


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def where(result: Result) -> str:
    machine = result["machine"]
    rounds = f"; medians of {result['rounds']} rounds" if "rounds" in result else ""  # cycles are one long run
    return (
        f"*{result['date']}, {machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel'].split('-')[0]}, Python {machine['python']}{rounds}.*"
    )


def hot_path(result: Result) -> str:
    columns = ["", "requests per CPU second", "× nginx", "µs/request", "added p50, µs", "added p99, µs", "µs/SSE event"]
    rows = [
        [
            row["name"],
            f"{row['requests_per_cpu_s']:,}",
            f"{row['share_of_nginx']:.2g}" if row["share_of_nginx"] < 0.01 else f"{row['share_of_nginx']:.2f}",
            f"{row['us_per_request']:.0f}",
            f"{row['added_p50_us']:,}",
            f"{row['added_p99_us']:,}",
            f"{row['us_per_event']:.1f}",
        ]
        for row in result["proxies"]
    ]
    direct = result["proxies"][0]
    told = f"Straight to the engine: p50 {direct['direct_p50_us']} µs, p99 {direct['direct_p99_us']} µs. "
    return "\n\n".join(
        [markdown(columns, rows), told + verdict(result, f"≥ {result['target_share_of_nginx']} × nginx")]
    )


def held(result: Result) -> str:
    columns = ["", "KiB per held request", "added by a second wave, KiB"]
    rows = [[row["name"], f"{row['kib_per_request']:.1f}", f"{row['kib_second_wave']:+.1f}"] for row in result["held"]]
    told = (
        f"{result['requests']:,} requests held at once; their bodies ({result['body_bytes']} bytes each) come on top. "
    )
    return "\n\n".join([markdown(columns, rows), told + verdict(result, f"≤ {result['target_kib']:.0f} KiB")])


def cold_start(result: Result) -> str:
    """Also for the large model's run, in a part of its own."""
    found: dict[str, Any] = result["starts"]
    longest = max(one["first_token_s"] for one in found.values())
    columns = ["", "first token, s", "× faster than stock", "warm, s", "× warm", "± ", "phases, s"]
    rows = [
        [
            start,
            f"{one['first_token_s']:.2f}",
            f"{one['times_faster']:.1f}" if "times_faster" in one else "",
            f"{one['warm_s']:.3f}" if "warm_s" in one else "",
            f"{one['times_warm']:.2f}" if "times_warm" in one else "",
            f"{one['spread']:.0%}",
            ", ".join(f"{name} {seconds:.2f}" for name, seconds in _in_order(one.get("phases_s", {}))),
        ]
        for start, one in found.items()
    ]
    width = max(map(len, found))
    lines = [
        f"{start:<{width}} {one['first_token_s']:6.2f} s  {bar(one['first_token_s'] / longest)}"
        for start, one in found.items()
    ]
    told = f"`{result['model']}` in {result['dtype']}, {result['weights_bytes'] / 1e6:,.0f} MB of weights. "
    if result.get("disk_bytes_per_s") and "cold cache" in found:
        floor_s = result["weights_bytes"] / result["disk_bytes_per_s"]
        rate = result["disk_bytes_per_s"] / 1e9
        told += f"Read from its begin to its end, the disk gives {rate:.2f} GB/s: {floor_s:.2f} s for these bytes. "
    if result.get("llama_cpp_loaded_s"):
        told += f"llama.cpp said that the model is loaded after {result['llama_cpp_loaded_s']:.2f} s. "
    return "\n\n".join(["```\n" + "\n".join(lines) + "\n```", markdown(columns, rows), told.strip()])


def _in_order(phases: dict[str, float]) -> list[tuple[str, float]]:
    order = [state.value for state in ReplicaState]
    return sorted(phases.items(), key=lambda item: order.index(item[0]))


def cycles(result: Result) -> str:
    columns = ["cycles", "agent, MiB", "zygote, MiB", "pool, MiB", "processes", "descriptors", "files left"]
    rows = [
        [
            str(look["cycle"]),
            f"{look['agent_bytes'] / 2**20:.1f}",
            f"{look['zygote_bytes'] / 2**20:.1f}",
            f"{look['pool_bytes'] / 2**20:.1f}",
            str(look["processes"]),
            str(look["agent_descriptors"]),
            str(len(look["files"])),
        ]
        for look in result["held"]
    ]
    grown = result["growth_bytes_per_100"] / 2**20
    told = (
        f"{result['wrong_answers']} of {result['answers']} answers were not the first one; a cycle took "
        f"{result['seconds_a_cycle']:.1f} s. The time to go was off by {result['eta_median_error']:.0%} half-way "
        f"(median of {result['eta_wakes']} wakes). Agent and zygote grew {grown:.2f} MiB in 100 cycles. "
    )
    return "\n\n".join([markdown(columns, rows), told + verdict(result, "≤ 1 MiB in 100 cycles, no other answer")])


def queue(result: Result) -> str:
    columns = [
        "",
        "jobs waiting",
        "enqueue/s",
        "p50 / p99, ms",
        "claim/s",
        "p50 / p99, ms",
        "finish/s",
        "p50 / p99, ms",
    ]
    columns += ["bytes/job"]
    rows = []
    for row in result["queues"]:
        cells = [row["name"], f"{row['jobs']:,}"]
        for what in ("enqueue", "claim", "finish"):
            cells.append(f"{row[f'{what}_per_s']:,.0f}")
            cells.append(f"{row[f'{what}_p50_ms']:.2f} / {row[f'{what}_p99_ms']:.2f}")
        rows.append([*cells, f"{row['bytes_per_job']:,}"])
    told = (
        f"Enqueued by {result['submitters']} callers at once, claimed and finished by {result['workers']}; each figure "
        f"is of {result['sample']:,} calls with that many jobs waiting. Bytes are of Redis's memory for a waiting job, "
        f"{result['body_bytes']:,} of its body included."
    )
    return "\n\n".join([markdown(columns, rows), told])


def eta(result: Result) -> str:
    columns = ["model", "wakes", "seconds, median (range)", "median error", "90 % within"]
    rows = [
        [
            row["name"],
            str(row["wakes"]),
            f"{row['took_median_s']:.1f} ({row['took_min_s']:.1f} – {row['took_max_s']:.1f})",
            f"{row['median_error']:.0%}",
            f"{row['p90_error']:.0%}",
        ]
        for row in result["models"]
    ]
    rows.append(["all", str(result["wakes"]), "", f"{result['median_error']:.0%}", f"{result['p90_error']:.0%}"])
    told = f"By the agent's own account the median error is {result['agents_median_error']:.0%}. "
    return "\n\n".join([markdown(columns, rows), told + verdict(result, f"a median of ≤ {result['target']:.0%}")])


def six_models(result: Result) -> str:
    columns = ["", "requests", "right", "loads", "put to sleep", "wait p50, s", "wait p99, s", "longest, s", "took, s"]
    rows = []
    for title, key in (("six models, memory for three", "mixed"), ("two models, memory for one", "two")):
        found = result[key]
        cells = [str(found[name]) for name in ("requests", "right")]
        cells += [str(sum(found[name].values())) for name in ("loads", "put_to_sleep")]
        cells += [f"{found[name]:.1f}" for name in ("wait_p50_s", "wait_p99_s", "wait_max_s", "took_s")]
        rows.append([title, *cells])
    told = "Why those of the second row waited, as they were told: " + "; ".join(result["two"]["explained"][:6]) + ". "
    told += f"Nobody there may wait longer than {result['two']['bound_s']:.0f} s: a turn, two loads, a stop, a request."
    return "\n\n".join([markdown(columns, rows), told])


def never_fits(result: Result) -> str:
    columns = ["", "beside an unknown model, ms", "beside one that never fits, ms", "ratio, median of the rounds"]
    rows = [
        [
            key,
            f"{result[f'alone_{key}_ms']:.2f}",
            f"{result[f'beside_{key}_ms']:.2f}",
            f"{statistics.median(result[f'ratio_{key}']):.2f}",
        ]
        for key in ("p50", "p99")
    ]
    told = f"{result['errors']} typed errors, {result['unloaded']} models unloaded."
    return "\n\n".join([markdown(columns, rows), told])


def load_guard(result: Result) -> str:
    columns = ["", "p50 before, ms", "p99 before, ms", "p50 during, ms", "p99 during, ms", "p99 ×", "load, s"]
    names = ("before_p50_ms", "before_p99_ms", "during_p50_ms", "during_p99_ms")
    rows = [
        [
            f"guard {guard}",
            *(f"{found[name]:.1f}" for name in names),
            f"{found['ratio_p99']:.2f}",
            f"{found['load_s']:.0f}",
        ]
        for guard, found in result["guard"].items()
    ]
    return markdown(columns, rows) + f"\n\nBoth models on the `{result['engine']}` engine."


def verdict(result: Result, target: str) -> str:
    return f"Target: {target}: {'met' if result['met'] else '**missed**'}."


PARTS: dict[str, Callable[[Result], str]] = {
    "hot_path": hot_path,
    "held": held,
    "cold_start": cold_start,
    "cold_start_large": cold_start,
    "cycles": cycles,
    "queue": queue,
    "eta": eta,
    "load_guard": load_guard,
    "six_models": six_models,
    "never_fits": never_fits,
}


def render(text: str, folder: Path) -> tuple[str, list[str]]:
    """(the document with its parts replaced, the names of those)."""
    done = []
    for name, part in PARTS.items():
        file = folder / f"{name}.json"
        if not file.exists():
            continue
        result = json.loads(file.read_text(encoding="utf-8"))
        new = f"<!-- {name} -->\n{part(result)}\n\n{where(result)}\n<!-- /{name} -->"
        pattern = re.compile(rf"<!-- {name} -->.*?<!-- /{name} -->", re.DOTALL)
        found = pattern.findall(text)
        if len(found) != 1:
            raise ValueError(f"the document has {len(found)} parts named {name}")
        text = text.replace(found[0], new)
        done.append(name)
    return text, done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "benchmarks.md")
    args = parser.parse_args()
    text, done = render(args.docs.read_text(encoding="utf-8"), args.folder)
    args.docs.write_text(text, encoding="utf-8")
    print(f"{args.docs}: {', '.join(done) or 'nothing to write'}")


if __name__ == "__main__":
    main()
