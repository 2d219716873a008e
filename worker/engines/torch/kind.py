"""The torch engine for the pool (:mod:`worker.pool`): what is imported once, and what is done ahead for each model."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import MutableMapping, Sequence
from typing import Any

from rewarm.messages import ReplicaSpec
from worker.engines.forking import InParts, torch_forbids_forking, versions_of
from worker.engines.host import HostContext, Serve
from worker.engines.hostfile import HostFile
from worker.engines.torch.environment import prepare

_IMPORTS: Sequence[str] = (
    "torch",
    "transformers",
    "uvloop",
    "uvicorn.protocols.http.auto",
    "uvicorn.lifespan.off",
    "worker.engines.http",
    "worker.engines.torch.ahead",
    "worker.engines.torch.application",
    "worker.engines.torch.host",
    "worker.engines.torch.loading",
)
"""What every engine imports; what comes with these is not named."""

_MEASURED = ("torch", "transformers", "tokenizers")


class TorchKind:
    need_bytes = 450 * 2**20

    def unusable(self) -> str:
        for name in ("torch", "transformers", "uvicorn"):
            if importlib.util.find_spec(name) is None:
                return f"{name} is not installed"
        return ""

    def unsuitable(self, spec: ReplicaSpec) -> str:
        return "its `env` is read while the engine is imported" if spec.env else ""

    def versions(self) -> dict[str, str]:
        return versions_of(_MEASURED)

    def environment(self, environment: MutableMapping[str, str]) -> None:
        prepare(environment)

    def load(self) -> None:
        for module in _IMPORTS:
            importlib.import_module(module)

    def prepare(self, host: HostFile, whole: bool) -> tuple[Any, str]:
        """Configuration, tokenizer, and the model; with its weights if ``whole`` and if they can be mapped."""
        from worker.engines.torch.ahead import Prepared, map_ahead
        from worker.engines.torch.host import checked
        from worker.engines.torch.model import build
        from worker.engines.torch.need import dtype_of

        checkpoint, need = checked(host)
        skeleton = build(checkpoint, dtype_of(checkpoint, host.spec.dtype), need.context)
        if not whole:
            return Prepared(skeleton), ""
        try:
            return Prepared(skeleton, map_ahead(host, checkpoint, skeleton)), ""
        except InParts as why:
            return Prepared(skeleton), str(why)

    def unsafe(self) -> str:
        return torch_forbids_forking()

    def serve(self, prepared: Any, proven: Sequence[str]) -> Serve:
        from worker.engines.torch.host import serve

        async def forked(host: HostFile, context: HostContext) -> None:
            await serve(host, context, prepared, proven)

        return forked


KIND = TorchKind()
