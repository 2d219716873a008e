"""One model of llama-swap: its command, its names, its clocks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rewarm.imports.document import Commented, Remark
from rewarm.imports.llama_swap.macros import MacroProblem, Macros
from rewarm.imports.llama_swap.reading import Item

_DEFAULT_TIMEOUT_S, _LEAST_TIMEOUT_S = 120, 15  # of healthCheckTimeout, as llama-swap has them
_DEFAULT_UNLOAD_S = 10
_NEVER = "365d"

_CONTAINERS = ("docker", "podman")  # a path in their commands is the container's

_LOST = {
    "filters": "requests are sent as they come: put sampling defaults into the command",
    "metadata": "/v1/models shows no fields of your own",
    "timeouts": "an answer may take as long as it moves: see answer_stall",
}
_DROPPED = {"name": "", "description": "", "sendLoadingState": "clients see the load's progress anyway"}
_CONVERTED = frozenset(
    (
        *("macros", "cmd", "cmdStop", "env", "proxy", "checkEndpoint", "ttl", "unloadTimeout"),
        *("useModelName", "aliases", "concurrencyLimit", "unlisted"),
    )
)


def convert_model(
    name: str,
    item: Item,
    root: Item,
    macros: Mapping[str, Any],
    environment: Mapping[str, str],
    remarks: list[Remark],
) -> Commented | None:
    """None, with a remark, for a model that has no usable command."""
    own = {key: macro.text for key, macro in item.get("macros").items()}
    reading = _Model(name, item, root, Macros({**macros, **own}, environment, name), remarks)
    return reading.convert()


class _Model:
    def __init__(self, name: str, item: Item, root: Item, macros: Macros, remarks: list[Remark]) -> None:
        self._name, self._item, self._root, self._macros, self._remarks = name, item, root, macros, remarks
        self._out = Commented()

    def convert(self) -> Commented | None:
        command = self._command("cmd")
        if not command:
            if command == "":
                self._say("cmd", "a model needs a command: left out")
            return None
        said = [self._item.get(field).text for field in ("name", "description")]
        self._out.head = tuple(line for text in said if text for line in text.splitlines())
        self._out.values |= {"engine": "command", "cmd": command}
        self._address(command)
        self._weights(command)
        self._names()
        self._clocks()
        self._rest()
        return self._out

    def _command(self, field: str) -> str | None:
        """Macros put in, comment lines and continued lines joined; None where that is not possible."""
        text = self._fill(field)
        if text is None:
            return None
        lines = [line.strip().removesuffix("\\").strip() for line in text.splitlines()]
        command = "\n".join(line for line in lines if line and not line.startswith("#"))
        try:
            shlex.split(command)
        except ValueError as error:
            self._say(field, f"cannot be split into words: {error}")
            return None
        return command

    def _address(self, command: str) -> None:
        """Where it serves, and where it says that it is ready."""
        out = self._out.values
        proxy = urlsplit(self._fill("proxy") or "http://localhost:${PORT}")
        port = proxy.netloc.rpartition(":")[2]
        if port.isdigit() and "${PORT}" not in command:
            out["port"] = int(port)
        elif "${PORT}" not in command:
            self._say("cmd", "names no ${PORT}, and `proxy` no port: set `port`")
        if proxy.hostname not in ("localhost", "127.0.0.1", "::1") or proxy.path.strip("/"):
            self._say("proxy", "rewarm asks the command on this machine's loopback, without a path before /v1")
        check = self._fill("checkEndpoint")
        if check:
            out["readiness_path"] = check if check == "none" or check.startswith("/") else f"/{check}"
        entries = [self._filled(entry, "env") for entry in self._item.get("env").entries()]
        env = dict(entry.partition("=")[::2] for entry in entries if entry)
        if env:
            out["env"] = env
        stop = self._command("cmdStop") if self._item.get("cmdStop") else None
        if stop:
            out["stop_cmd"] = stop

    def _weights(self, command: str) -> None:
        """llama-server's own flags say where the weights are, and how many requests run at once."""
        words = shlex.split(command)
        out = self._out.values
        source = _option(words, "-m", "--model")
        if source and source.endswith(".gguf") and source.startswith("/") and Path(words[0]).name not in _CONTAINERS:
            out["source"] = source
            self._out.notes["source"] = "for byte progress and the memory need"
        else:
            self._out.notes["cmd"] = "add `memory: 8GiB` (or `source:`): its need cannot be told from here"
        slots = _option(words, "-np", "--parallel")
        limit = self._number("concurrencyLimit")
        if slots and slots.isdigit() and int(slots) > 0:
            out["slots"] = int(slots)
        elif limit:
            out["slots"] = limit

    def _names(self) -> None:
        out = self._out.values
        aliases = []
        for entry in self._item.get("aliases").entries():
            alias = self._filled(entry.get("id") or entry, "aliases")
            if alias:
                aliases.append(alias)
            if entry.get("unlisted").value is True:
                self._remarks.append(Remark(entry.line, self._at("aliases"), "an alias is listed with its model"))
        if aliases:
            out["aliases"] = aliases
        upstream = self._fill("useModelName")
        if upstream:
            out["upstream_model"] = upstream
        if self._item.get("unlisted").value is True:
            out["unlisted"] = True

    def _clocks(self) -> None:
        out, notes = self._out.values, self._out.notes
        ttl = self._number("ttl", -1)
        if ttl is None or ttl < 0:
            ttl = _whole(self._root.get("globalTTL")) or 0
        out["idle_after"] = f"{ttl}s" if ttl else _NEVER
        if not ttl:
            notes["idle_after"] = "it was never unloaded by time"
        timeout = _whole(self._root.get("healthCheckTimeout"))
        patience = max(timeout if timeout is not None else _DEFAULT_TIMEOUT_S, _LEAST_TIMEOUT_S)
        if timeout is not None:
            for phase in ("starting", "restoring", "initialising"):
                out[f"{phase}_stall"] = f"{patience}s"
            notes["starting_stall"] = "healthCheckTimeout; here it counts from the last progress"
        unload = self._number("unloadTimeout")
        if unload is None:
            unload = _whole(self._root.get("unloadTimeout"))
        if unload is not None or "stop_cmd" in out:
            out["stop_grace"] = f"{min(max(unload or _DEFAULT_UNLOAD_S, 1), 600)}s"

    def _rest(self) -> None:
        for field, item in self._item.items():
            if field in _LOST:
                self._remarks.append(Remark(item.line, self._at(field), _LOST[field]))
            elif field in _DROPPED:
                if _DROPPED[field]:
                    self._remarks.append(Remark(item.line, self._at(field), _DROPPED[field], lost=False))
            elif field not in _CONVERTED:
                self._remarks.append(Remark(item.line, self._at(field), "this field is not known here"))

    # -- reading

    def _number(self, field: str, default: int | None = None) -> int | None:
        item = self._item.get(field)
        if not item:
            return default
        found = _whole(item)
        if found is None:
            self._say(field, f"{item.text!r} is no whole number")
        return default if found is None else found

    def _fill(self, field: str) -> str | None:
        """Its text with macros; empty where it is missing, None (and a remark) where a macro cannot be put in."""
        return self._filled(self._item.get(field), field)

    def _filled(self, item: Item, field: str) -> str | None:
        try:
            return self._macros.fill(item.text)
        except MacroProblem as problem:
            self._remarks.append(Remark(item.line, self._at(field), f"{problem}: left out"))
            return None

    def _at(self, field: str) -> str:
        return f"models.{self._name}.{field}"

    def _say(self, field: str, text: str) -> None:
        self._remarks.append(Remark(self._item.get(field).line, self._at(field), text))


def _whole(item: Item) -> int | None:
    return int(item.text) if re.fullmatch(r"-?\d+", item.text) else None


def _option(words: list[str], *names: str) -> str | None:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in names:
            return following
        name, separator, value = word.partition("=")
        if separator and name in names:
            return value
    return None
