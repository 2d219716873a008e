"""Which recorded answers a vLLM engine is held to."""

from __future__ import annotations

from rewarm_vllm import Loaded
from snapshots import Flavour, Manifest
from worker.engines import canary
from worker.engines.canary import ask
from worker.engines.proof import Post

__all__ = ["ask", "check"]


async def check(post: Post, model: str, loaded: Loaded, most: int | None = None) -> bool:
    """As :func:`worker.engines.canary.check`."""
    return await canary.check(post, model, loaded, _counts, most)


def _counts(manifest: Manifest) -> bool:
    """Not a portable one's: it is another engine's, which may differ where two tokens are nearly as likely."""
    return manifest.flavour is not Flavour.PORTABLE
