"""A worker's agent alone: ``python tests/programs/agent.py CONFIG REDIS_URL``. For tests that kill it."""

from __future__ import annotations

import sys
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fleet import FleetClient
from rewarm.config import load
from rewarm.log import setup
from rewarm.paths import Paths
from worker import run_agent


async def main(config_file: str, url: str) -> None:
    setup("worker")
    config = load(Path(config_file))
    assert config.state_dir is not None
    client = await FleetClient.connect(url, config.fleet, check=False)
    try:
        await run_agent(config, Paths.at(config.state_dir), client)
    finally:
        await client.close()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2]))
