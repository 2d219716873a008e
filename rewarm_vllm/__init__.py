"""Weight snapshots in vLLM: a plugin that gives plain ``vllm`` the load format ``rewarm``, and captures from it.

In: vLLM's configuration, whose ``model`` is a checkpoint's folder or a snapshot's, and a :class:`snapshots.Store`. Out:
a loaded model, from the first of *packed*, *sharded*, *portable* and the checkpoint itself that is proved to fit
(:class:`Loaded` says which, and why nothing better did); and new snapshots out of a running engine
(:class:`CaptureJob`), published only once they gave the recorded greedy answer again.

The entry point ``vllm.general_plugins`` names :func:`rewarm_vllm.plugin.register`. Importing this package does not
import vLLM or torch: what ``use`` hands out does, when it is called.
"""

from rewarm_vllm.canary import PROMPT, TOKENS, CanaryFailed, check_canary
from rewarm_vllm.job import CaptureJob, CaptureRefused
from rewarm_vllm.observing import Loaded, Observer, use_observer
from rewarm_vllm.options import COMPILE_FOLDER_ENV, LOAD_FORMAT, LoadOptions
from rewarm_vllm.use import (
    capture,
    drop_weights,
    fetch_weights,
    lacks_snapshot,
    let_go,
    register,
    resume,
    settle,
    why_not_mapped,
    why_weights_stay,
)

__all__ = [
    "COMPILE_FOLDER_ENV",
    "LOAD_FORMAT",
    "PROMPT",
    "TOKENS",
    "CanaryFailed",
    "CaptureJob",
    "CaptureRefused",
    "LoadOptions",
    "Loaded",
    "Observer",
    "capture",
    "check_canary",
    "drop_weights",
    "fetch_weights",
    "lacks_snapshot",
    "let_go",
    "register",
    "resume",
    "settle",
    "use_observer",
    "why_not_mapped",
    "why_weights_stay",
]
