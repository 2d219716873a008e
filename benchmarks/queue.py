"""The durable queue beside taskiq-redis: how fast jobs are taken in, handed out and ended, and what they take up.

    python -m benchmarks.queue [--json] [--jobs 10000 1000000] [--rounds 1] [--sample 2000]

Each has a redis-server of its own with the append-only file synced every second, on a unix socket, and one process that
talks to it. A round fills the queue up to so many waiting jobs (of 250 tenants, each with a body of 1 KiB) and then,
with that many waiting, times

- enqueue: 16 at once. Ours is `fleet.Jobs.submit` with an idempotency key; theirs is `task.kiq`.
- claim: four workers take one job each, as slots become free. Ours is `fleet.Queue.claim`, which serves in fair order,
  and the read of the body; theirs the next message of the stream, which carries it.
- finish: a result of 1 KiB is written and the job taken off the queue. Ours is `fleet.Jobs.finish`; theirs is
  `set_result` and `ack`.

Memory is the growth of Redis's `used_memory` by the filling, by job. It includes the body.

taskiq's stream broker has one first-in-first-out order; it knows no tenants, priorities, places or idempotency keys, no
lease that is checked on every write, and no bound of bytes. It is the floor, not a rival. It needs
`benchmarks/setup.sh`; without it only ours is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks._output import arguments, emit, note, table
from benchmarks._processes import ROOT, running
from benchmarks._stats import median
from benchmarks._timing import Timing, timed
from fleet import JOB_BANDS, FleetClient, JobLimits, Jobs, Queue
from rewarm.errors import RedisUnreachable
from rewarm.ids import job_id
from rewarm.jobs import JobLease, JobOutcome, JobSpec, JobState

TASKIQ = ROOT / ".venv-taskiq" / "bin" / "python"
BODY_BYTES = 1024
RESULT_BYTES = 1024
TENANTS = 250
SUBMITTERS = 16
WORKERS = 4
_LIMITS = JobLimits(max_bytes_tenant=1 << 40, max_bytes_total=1 << 40, max_jobs_tenant=1 << 30)


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    folder.mkdir(parents=True)
    binary = shutil.which("redis-server")
    if binary is None:
        raise RuntimeError("redis-server is not installed")
    argv = [binary, "--port", "0", "--unixsocket", f"{folder}/redis.sock", "--dir", str(folder), "--save", ""]
    with running("redis", [*argv, "--appendonly", "yes", "--appendfsync", "everysec"], folder):
        yield f"unix://{folder}/redis.sock"


async def connected(url: str) -> FleetClient:
    async with asyncio.timeout(10):
        while True:
            try:
                return await FleetClient.connect(url, "benchmark", check=False)
            except RedisUnreachable:
                await asyncio.sleep(0.05)


def spec(id_: str, number: int) -> JobSpec:
    return JobSpec(
        id=id_,
        tenant=f"tenant-{number % TENANTS}",
        model="model",
        asked_model="model",
        path="/v1/chat/completions",
        band=JOB_BANDS["normal"],
    )


async def used_memory(client: FleetClient) -> int:
    return int((await client.call("INFO", "memory"))["used_memory"])


async def ours(url: str, jobs_waiting: int, sample: int) -> dict[str, Any]:
    client = await connected(url)
    jobs, queue = Jobs(client, _LIMITS), Queue(client)
    body, result = b"x" * BODY_BYTES, b"x" * RESULT_BYTES

    async def submit(number: int) -> None:
        id_ = job_id()
        await jobs.submit(spec(id_, number), body, idempotency=(id_, id_))

    taken: list[JobLease] = []

    async def claim(number: int) -> None:
        claimed = await queue.claim(
            *("model", "worker", "replica", "unix:/gate", [f"grant-{number}"]),
            request_id=f"claim-{number}",
            max_jobs=1,
            boot="boot",
        )
        (lease,) = claimed.jobs
        if await jobs.body(lease.spec.id) is None:
            raise RuntimeError(f"{lease.spec.id} has no body")
        taken.append(lease)

    async def finish(number: int) -> None:
        lease = taken[number]
        outcome = JobOutcome(state=JobState.COMPLETED, http_status=200, usage={"total_tokens": 100}, tokens=50)
        if not await jobs.finish(lease.spec.id, "boot", lease.attempt, outcome, result):
            raise RuntimeError(f"{lease.spec.id} was fenced out")

    try:
        before = await used_memory(client)
        fill = await timed(jobs_waiting - sample, SUBMITTERS, submit)
        enqueue = await timed(sample, SUBMITTERS, submit)
        memory = await used_memory(client) - before
        claimed = await timed(sample, WORKERS, claim)
        finished = await timed(sample, WORKERS, finish)
    finally:
        await client.close()
    return measured(fill, enqueue, claimed, finished, memory)


def measured(fill: Timing, enqueue: Timing, claim: Timing, finish: Timing, memory: int) -> dict[str, Any]:
    return {
        "fill_per_s": round(fill.per_s) if fill.count else None,
        "enqueue": enqueue.json(),
        "claim": claim.json(),
        "finish": finish.json(),
        "memory_bytes": memory,
    }


async def theirs(url: str, jobs_waiting: int, sample: int) -> dict[str, Any]:
    numbers = (jobs_waiting, sample, BODY_BYTES, RESULT_BYTES, SUBMITTERS, WORKERS)
    program = await asyncio.create_subprocess_exec(
        *(str(TASKIQ), "-m", "benchmarks._queue_peer", url, *map(str, numbers)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    out, _ = await program.communicate()
    if program.returncode:
        raise RuntimeError(f"the taskiq program exited with {program.returncode}")
    answer: dict[str, Any] = json.loads(out)
    return answer


def summary(name: str, jobs: int, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {"name": name, "jobs": jobs}
    for what in ("enqueue", "claim", "finish"):
        for figure in ("per_s", "p50_ms", "p99_ms"):
            out[f"{what}_{figure}"] = round(median([one[what][figure] for one in rounds]), 2)
    memory = median([one["memory_bytes"] for one in rounds])
    fills = [one["fill_per_s"] for one in rounds if one["fill_per_s"]]
    return out | {
        "fill_per_s": round(median(fills)) if fills else None,
        "memory_mib": round(memory / 2**20, 1),
        "bytes_per_job": round(memory / jobs),
        "bytes_per_job_less_body": round(memory / jobs) - BODY_BYTES,
    }


async def run(rounds: int, depths: list[int], sample: int) -> dict[str, Any]:
    queues = {"rewarm": ours}
    if TASKIQ.exists():
        queues["taskiq-redis"] = theirs
    else:
        note("taskiq is not installed: run benchmarks/setup.sh")
    rows = []
    for jobs in depths:
        some = min(sample, jobs)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in queues}
        for index in range(rounds):
            for name, measure in queues.items():
                note(f"{jobs:,} jobs, round {index + 1} of {rounds}: {name}")
                with tempfile.TemporaryDirectory(prefix="rewarm-bench-") as folder:
                    with redis_server(Path(folder) / "redis") as url:
                        await asyncio.wait_for(_up(url), 10)
                        found[name].append(await measure(url, jobs, some))
        rows += [summary(name, jobs, measured_) for name, measured_ in found.items()]
    return {
        "rounds": rounds,
        "sample": sample,
        "body_bytes": BODY_BYTES,
        "result_bytes": RESULT_BYTES,
        "submitters": SUBMITTERS,
        "workers": WORKERS,
        "queues": rows,
    }


async def _up(url: str) -> None:
    await (await connected(url)).close()


def tables(result: dict[str, Any]) -> list[Table]:
    columns = ["", "jobs waiting", "enqueue/s", "p50, ms", "p99, ms", "claim/s", "p50", "p99", "finish/s", "p50", "p99"]
    columns += ["bytes/job"]
    rows = [
        [
            row["name"],
            f"{row['jobs']:,}",
            *(
                f"{row[f'{what}_{figure}']:,.0f}" if figure == "per_s" else f"{row[f'{what}_{figure}']:.2f}"
                for what in ("enqueue", "claim", "finish")
                for figure in ("per_s", "p50_ms", "p99_ms")
            ),
            f"{row['bytes_per_job']:,}",
        ]
        for row in result["queues"]
    ]
    caption = f"bytes per waiting job include {result['body_bytes']} of its body; one process, {result['submitters']} "
    caption += f"submitters or {result['workers']} workers at once; medians of {result['rounds']} rounds"
    return [table("Durable queue", columns, rows, caption)]


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--jobs", type=int, nargs="+", default=[10_000, 1_000_000], help="waiting while it is measured")
    parser.add_argument("--sample", type=int, default=2000, help="calls of each kind that are timed")
    args = parser.parse_args()
    result = asyncio.run(run(args.rounds, args.jobs, args.sample))
    emit("queue", result, tables(result), args.json)


if __name__ == "__main__":
    main()
