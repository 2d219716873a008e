"""Break the Lua on purpose and see that the suite notices: ``python -m tests.fleet.mutate_lua [NAME…]``.

Each mutation of ``lua_sources.MUTATIONS`` is one lost line. For each, the suite of the fleet runs until its first
failure; a mutation that survives means that nothing tests that line. Exits with 1 when one survives.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from tests.fleet.lua_sources import MUTATIONS
from tests.redis_server import local_redis

# The directed tests first: the state machine finds more, and takes longer.
SUITE = (
    "queue",
    "leases",
    "files",
    "batches",
    "hooks",
    "jobs",
    "job_attempts",
    "job_ends",
    "job_moving",
    "job_bounds",
    "hand_off",
    "job_faults",
    "fairness",
    "faults",
    "leader",
    "registry",
    "redis_gone",
    "machine",
    "job_histories",
)


def survives(mutation: str, redis_url: str) -> bool:
    files = [f"tests/fleet/test_{name}.py" for name in SUITE]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", *files]
    ours = {"REWARM_TEST_MUTATION": mutation, "REWARM_TEST_REDIS_URL": redis_url, "REWARM_TEST_DEPTH": "3"}
    environment = {**os.environ, **ours}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if run.returncode not in (0, 1):
        sys.exit(f"the suite did not run: {run.stdout}{run.stderr}")
    failed = next((line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
    sys.stdout.write(f"  {failed.partition(' - ')[0]}\n" if failed else "")
    return run.returncode == 0


def main(names: list[str]) -> int:
    chosen = [mutation.name for mutation in MUTATIONS if not names or mutation.name in names]
    survivors = []
    with local_redis(appendfsync="everysec") as server:
        for name in chosen:
            started = time.monotonic()
            survived = survives(name, server.url)
            verdict = "SURVIVED" if survived else "noticed"
            sys.stdout.write(f"{verdict} in {time.monotonic() - started:.0f} s: {name}\n")
            sys.stdout.flush()
            survivors += [name] if survived else []
    sys.stdout.write(f"{len(chosen) - len(survivors)} of {len(chosen)} mutations noticed\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
