"""Real engines out of a real zygote: thirty in a row say the same, and nothing grows."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest

from rewarm.messages import ReplicaSpec
from rewarm.upstream import UpstreamPool
from tests.worker.conftest import until
from tests.worker.pool.rig import pooled
from worker.engines.estimate import estimate
from worker.engines.hostfile import write_host_file
from worker.launch import for_any_replica
from worker.pool.kind import KINDS, key
from worker.report import FailedReport, ReadyReport, Report, serve_reports

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio, pytest.mark.timeout(600)]

FORKS = 30
QUESTION = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 12,
    "temperature": 0,
}


async def test_thirty_forks_in_a_row_give_the_same_text_and_leave_nothing(tmp_path: Path, smollm2: Path) -> None:
    # One slot and a short context keep the warm-up short, which each of them goes through.
    spec = ReplicaSpec(
        model="smollm2",
        engine="vllm",
        served_names=("smollm2",),
        slots=1,
        source=str(smollm2),
        context_length=96,
        dtype="float32",
        snapshot="off",
    )
    upstream = UpstreamPool()
    async with pooled(tmp_path, module=KINDS["vllm"]) as rig:
        host = for_any_replica(rig.around, spec, estimate(spec))
        rig.pool.register({key(host): host})
        await rig.filled()
        zygote = rig.report().pid
        assert zygote is not None
        texts: list[str] = []
        sizes: list[int] = []
        for number in range(FORKS):
            reports: list[Report] = []
            name = f"r-{number}"
            one = msgspec.structs.replace(
                host,
                replica=name,
                agent_pid=os.getpid(),
                socket=str(rig.around.paths.run / f"{name}.sock"),
                report=str(rig.around.paths.run / f"{name}.report"),
                token="t",
            )
            path = tmp_path / f"{name}.host"
            write_host_file(path, one)
            log = os.open(tmp_path / "engine.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
            async with serve_reports(Path(one.report), reports.append):
                member = await rig.pool.start(
                    one, str(path), {"REWARM_REPLICA": name, "REWARM_REPORT": one.report}, log
                )
                os.close(log)
                await until(partial(_over, reports), f"{name} is ready", 120)
                assert not [report for report in reports if isinstance(report, FailedReport)]
                lines = [(b"Content-Type", b"application/json")]
                body = json.dumps(QUESTION).encode()
                response = await upstream.request(f"unix:{one.socket}", "POST", "/v1/chat/completions", lines, body)
                answer = json.loads(await response.read(2**20))
                assert response.status == 200, answer
                texts.append(answer["choices"][0]["message"]["content"])
                member.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(member.wait(), 30) == 0
            await rig.filled()
            sizes.append(psutil.Process(zygote).memory_info().rss)
        await upstream.close()
        assert len(set(texts)) == 1, texts
        assert "Paris" in texts[0]
        assert rig.report().zygotes == 1
        assert rig.report().pooled == FORKS
        assert sizes[-1] - sizes[4] < 8 * 2**20, f"the zygote does not grow: {sizes}"
        left = sorted(path.name for path in rig.around.paths.run.iterdir())
        assert not left, left


def _over(reports: list[Report]) -> bool:
    return any(isinstance(report, ReadyReport | FailedReport) for report in reports)
