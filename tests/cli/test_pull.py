"""``rewarm pull``: a hub's model ahead of its first request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import rewarm
from tests.snapshots.hub_server import Hub, serving


@pytest.mark.asyncio
async def test_pull_brings_a_hub_s_model_into_the_cache(tmp_path: Path) -> None:
    """The command is shown what it needs to know by the environment, as for the hub's own tools."""
    async with serving(Hub({"a.gguf": b"weights" * 1000})) as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_TOKEN_PATH": str(tmp_path / "none")}
        config = tmp_path / "c.yaml"
        config.write_text(
            "models: {m: {engine: command, cmd: 'serve ${PORT}', source: 'hf:org/tiny', aliases: [tiny]}}"
        )
        done = await rewarm("pull", "tiny", "--config", str(config), "--json", env=env)
        assert done.code == 0, done.err
        told = done.json()
        assert (told["source"], told["bytes"]) == ("hf:org/tiny", 7000)
        assert Path(told["path"]).read_bytes() == b"weights" * 1000
        hub.gated = True
        done = await rewarm("pull", "hf:org/gated", env=env)
        assert (done.code, "has no model org/gated" in done.err, "source_refused" in done.err) == (9, True, True)
        done = await rewarm("pull", "org/tiny", env=env)
        assert (done.code, "write hf:org/name" in done.err) == (2, True)
