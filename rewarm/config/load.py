"""YAML file → :class:`Config`. Every error is reported at once, with its line and field."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from rewarm.config.adapter import AdapterModel
from rewarm.config.named import NamedModel
from rewarm.config.remote import RemoteModel
from rewarm.config.schema import CommandModel, Config, KeyConfig, TorchModel, VllmModel
from rewarm.errors import ConfigInvalid, ConfigNotFound
from rewarm.hub import is_hub

_Path = tuple[str | int, ...]

_ENGINES: dict[object, type[NamedModel]] = {
    "vllm": VllmModel,
    "torch": TorchModel,
    "command": CommandModel,
    "remote": RemoteModel,
    "adapter": AdapterModel,
}
_NAMES = "vllm, torch, command or remote"


_BOOL = "tag:yaml.org,2002:bool"


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where YAML would silently keep the last, and takes `on` and `off` for
    the words they are: YAML 1.1 reads them as true and false."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def load(path: Path) -> Config:
    """Raise ConfigNotFound, or ConfigInvalid with one line per error: ``FILE:LINE: field: what is wrong``."""
    return parse(_text(path), path)


def line_of(path: Path, field: str) -> int:
    """Where the file says ``models.NAME.source``, or the innermost part of it that is there; 0 where nothing is."""
    node = yaml.compose(_text(path), Loader=_Loader)
    line, rest = 0, field
    while rest and isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            # A model's name may have dots as well.
            if rest == key.value or rest.startswith(f"{key.value}."):
                line, node, rest = key.start_mark.line + 1, value, rest[len(key.value) + 1 :]
                break
        else:
            break
    return line


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigNotFound(f"{path}: {error.strerror or error}") from error
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigInvalid(
            f"{path}:{line}: file: not UTF-8 text: the byte {data[error.start]:#04x} at offset {error.start}"
        ) from error


def parse(text: str, path: Path = Path("config.yaml")) -> Config:
    """``path`` names the file in messages; relative paths in the text are taken from its folder."""
    try:
        node = yaml.compose(text, Loader=_Loader)
        data = yaml.load(text, Loader=_Loader)  # noqa: S506 -- _Loader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigInvalid(f"{path}:{line}: not valid YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigInvalid(f"{path}:{line}: file: not text: the character {text[error.position]!r}") from error
    except yaml.YAMLError as error:
        raise ConfigInvalid(f"{path}:1: not valid YAML: {error}") from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigInvalid(f"{path}:1: the file must be a mapping with models, gateway, …")
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        found = sorted(
            ((_line(node, e["loc"]), _field(e["loc"]), _say(e)) for e in error.errors(include_url=False)),
            key=lambda one: one[0],
        )
        lines = [f"{path}:{line}: {field}: {' '.join(what.split())}" for line, field, what in found]
        raise ConfigInvalid("\n".join(lines)) from error
    return _anchored(config, path.absolute().parent)


def _anchored(config: Config, base: Path) -> Config:
    """Make the file's relative paths absolute, from its own folder."""
    models: dict[str, Any] = {}
    for name, model in config.models.items():
        field = "ca_file" if isinstance(model, RemoteModel) else "source"
        given: Path | None = getattr(model, field)
        if given is not None and not is_hub(given):
            model = model.model_copy(update={field: base / given.expanduser()})
        models[name] = model
    state = config.state_dir and (base / config.state_dir.expanduser())
    kept = config.snapshots.dir and (base / config.snapshots.dir.expanduser())
    snapshots = config.snapshots.model_copy(update={"dir": kept})
    return config.model_copy(update={"models": models, "state_dir": state, "snapshots": snapshots})


def _clean(loc: _Path) -> _Path:
    """Without the discriminator that pydantic puts into the location of a model."""
    if len(loc) > 2 and loc[0] == "models" and loc[2] in _ENGINES:
        return (*loc[:2], *loc[3:])
    return loc


def _field(loc: _Path) -> str:
    return ".".join(str(part) for part in _clean(loc)) or "file"


def _line(node: yaml.Node | None, loc: _Path) -> int:
    """The line of the innermost part of ``loc`` that the file has."""
    line = 1
    for part in _clean(loc):
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    line, node = key.start_mark.line + 1, value
                    break
            else:
                return line
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            return line
    return line


def _say(error: Any) -> str:
    loc = _clean(error["loc"])
    if error["type"] == "extra_forbidden":
        if _of_the_base(error["loc"]):
            return "an adapter shares its base's engine: this is set at the base"
        near = difflib.get_close_matches(str(loc[-1]), _known(error["loc"]), n=1)
        return "unknown field" + (f"; did you mean {near[0]!r}?" if near else "")
    if error["type"] == "missing":
        return "is required"
    if error["type"] == "union_tag_not_found":
        return f"`engine` is required: {_NAMES}; or `adapter_of`"
    if error["type"] == "union_tag_invalid":
        return f"unknown engine {error['ctx']['tag']!r}: {_NAMES}"
    return str(error["msg"]).removeprefix("Value error, ")


def _of_the_base(loc: _Path) -> bool:
    """Whether an adapter is given what only a model with an engine has."""
    adapter = len(loc) == 4 and loc[0] == "models" and _ENGINES.get(loc[2]) is AdapterModel
    return adapter and str(loc[3]) in VllmModel.model_fields


def _known(loc: _Path) -> list[str]:
    """The field names that were possible where an unknown one stands."""
    if len(loc) >= 4 and loc[0] == "models":
        return list(_ENGINES[loc[2]].model_fields)
    if loc[0] == "keys":
        return list(KeyConfig.model_fields)
    fields: Any = Config
    for part in loc[:-1]:
        info = fields.model_fields.get(str(part))
        if info is None or not (isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)):
            return []
        fields = info.annotation
    return list(fields.model_fields)
