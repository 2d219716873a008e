"""An engine whose every start takes another while, as real ones do: the tests' fake engine behind a throw of dice.

    python benchmarks/_varying_engine.py --port 9000 --start 1 --read FILE --mbps 40 --settle 0.5

A start has a factor of its own (the machine is busy or not), each of its phases another one, and one start in
``--mishaps`` has a phase that takes four times as long. Then it becomes the fake engine.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path

_ENGINE = Path(__file__).resolve().parents[1] / "tests" / "programs" / "fake_engine.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", required=True)
    parser.add_argument("--start", type=float, default=1.0, help="seconds before anything is read")
    parser.add_argument("--read", type=Path, help="read this file before the port opens")
    parser.add_argument("--mbps", type=float, default=50.0, help="how fast, in MB/s")
    parser.add_argument("--settle", type=float, default=0.5, help="seconds from there to the open port")
    parser.add_argument("--answer", type=float, default=0.05, help="seconds to the first token, warm-up included")
    parser.add_argument("--busy", type=float, default=0.08, help="spread (log-normal) of the start's own factor")
    parser.add_argument("--spread", type=float, default=0.10, help="of each phase's")
    parser.add_argument("--mishaps", type=float, default=25.0, help="one start in so many goes wrong; 0: none")
    args = parser.parse_args()
    busy = random.lognormvariate(0, args.busy)
    factors = [busy * random.lognormvariate(0, args.spread) for _ in range(4)]
    if args.mishaps and random.random() < 1 / args.mishaps:
        factors[random.randrange(3)] *= 4
    time.sleep(args.start * factors[0])
    argv = [sys.executable, str(_ENGINE), "--port", args.port, "--start-delay", f"{args.settle * factors[2]:.3f}"]
    argv += ["--first-token-delay", f"{args.answer * factors[3]:.3f}"]
    if args.read is not None:
        argv += ["--read-file", str(args.read), "--read-mbps", f"{args.mbps / factors[1]:.2f}"]
    os.execv(sys.executable, argv)  # noqa: S606 -- becoming it is the point: the host watches this process


if __name__ == "__main__":
    main()
