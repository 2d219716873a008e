"""What this engine has and needs, next to what :mod:`snapshots.fingerprint` knows of the model.

*packed* also depends on things that no version number says: the instruction set that oneDNN chose or was told to keep
to, and whatever of the configuration goes into tensors that a model computes once (rotary tables, for instance, which
some models make for ``max_model_len``). These go into ``kernels``, the last as a digest.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import torch
import vllm
from msgspec.structs import replace

from rewarm_vllm import onednn
from rewarm_vllm.packed_format import PACKED_VERSION
from snapshots import Fingerprint, cpu_device

_ISA_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "VLLM_CPU_INT4_W4A8", "VLLM_ZENTORCH_WEIGHT_PREPACK")
_OF_THE_FOLDER = ("_name_or_path", "transformers_version", "_commit_hash")  # says nothing about the model


def engine_fingerprint(model: Fingerprint, vllm_config: Any, model_config: Any) -> Fingerprint:
    parallel = vllm_config.parallel_config
    return replace(
        model,
        engine=f"vllm {vllm.__version__}",
        torch=str(torch.__version__),  # a class of its own
        dtype=str(model_config.dtype).removeprefix("torch."),
        quantization=model_config.quantization,
        kernels=kernels(vllm_config, model_config),
        ranks={
            "tp": parallel.tensor_parallel_size,
            "pp": parallel.pipeline_parallel_size,
            "ep": parallel.tensor_parallel_size if parallel.enable_expert_parallel else 1,
        },
        device=_device(),
    )


def kernels(vllm_config: Any, model_config: Any) -> str:
    limits = [f"{name}={value}" for name in _ISA_LIMITS if (value := os.environ.get(name))]
    words = ["onednn", onednn.version(), torch.backends.cpu.get_cpu_capability(), *limits]
    return " ".join([*words, f"layout {PACKED_VERSION}", f"model {_model_digest(vllm_config, model_config)}"])


def _model_digest(vllm_config: Any, model_config: Any) -> str:
    config = model_config.hf_config.to_dict()
    told = {name: value for name, value in config.items() if name not in _OF_THE_FOLDER}
    what = [told, model_config.max_model_len, vllm_config.lora_config is not None, str(model_config.runner_type)]
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _device() -> str:
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        return f"cuda sm_{major}{minor}"
    return cpu_device()
