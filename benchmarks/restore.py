"""Restore of weights against fio, safetensors, fastsafetensors and runai-model-streamer.

``python -m benchmarks.restore --json [--gb 3] [--rounds 7] [--folder DIR] [--peer NAME=PYTHON]
[--only NAME]``. A peer that needs an
environment of its own is named by that environment's interpreter; it needs torch and safetensors there too.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from snapshots.bench import Bench, render


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restore", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--gb", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path("build/bench"), help="on the disk to measure")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this reader; may be repeated")
    options = parser.parse_args()
    peers = dict(peer.split("=", 1) for peer in options.peer)
    bench = Bench(options.folder, gb=options.gb, rounds=options.rounds, peers=peers, only=options.only, say=_say)
    result = bench.run()
    print(json.dumps(result, indent=1) if options.json else render(result))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
