"""The greedy answer that a portable snapshot was taken with, asked again of an engine that mapped it.

Portable weights are computed from by any engine, on any machine, in any dtype; where two tokens are nearly as likely
these differ, and are right all the same. So an answer counts only for engines that would sign as its writer did.
"""

from __future__ import annotations

import importlib.metadata

from rewarm_vllm import Loaded
from snapshots import cpu_device
from worker.engines import canary
from worker.engines.canary import ask
from worker.engines.proof import Post

__all__ = ["ask", "check", "signature"]


def signature(dtype: str) -> str:
    """What an answer depends on beside the weights."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers")]
    return ", ".join(["torch engine", *versions, dtype, cpu_device()])


async def check(post: Post, model: str, loaded: Loaded, signed: str, most: int | None = None) -> bool:
    """As :func:`worker.engines.canary.check`, for an engine that would sign with ``signed``."""
    return await canary.check(post, model, loaded, lambda manifest: manifest.writer.endswith(signed), most)
