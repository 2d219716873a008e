"""llama-swap's configuration in ours, as far as it can be said there; the rest as remarks with the line."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any

from rewarm.errors import ConfigInvalid
from rewarm.imports.document import Commented, Imported, Remark, render
from rewarm.imports.llama_swap.macros import MacroProblem, Macros
from rewarm.imports.llama_swap.model import convert_model
from rewarm.imports.llama_swap.reading import Item, read
from rewarm.imports.llama_swap.together import together

_ELSEWHERE = {
    "startPort": "rewarm finds a free port for each start",
    "logLevel": "`rewarm serve --log-level`",
    "logTimeFormat": "every line of the log begins with the time",
    "logToStdout": "each engine's output is in a file of its own, see `rewarm paths`",
    "includeAliasesInList": "aliases are always listed",
    "sendLoadingState": "clients see the load's progress anyway, see gateway.progress",
    "metricsMaxInMemory": "metrics are at /metrics, receipts at /v1/requests/{id}",
    "performance": "metrics are at /metrics",
    "ui": "there is no web page; `rewarm ps --watch` shows the same",
    "store": "receipts and wakes are in Redis",
    "healthCheckTimeout": "",
    "globalTTL": "",
    "unloadTimeout": "",
    "macros": "",
    "models": "",
    "groups": "",
    "matrix": "",
    "hooks": "",
    "peers": "",
    "apiKeys": "",
}
"""Top-level fields that are converted below (no text), or that nothing is lost of (why)."""

_NO_COUNTERPART = {
    "captureBuffer": "requests and answers are not recorded",
    "profiles": "names cannot be switched while it runs: use `aliases`, and change the file",
}


def convert(text: str, file: str, *, environment: Mapping[str, str] | None = None) -> Imported:
    """``environment`` is what ``${env.X}`` means, by default this process's. Raise ConfigInvalid for what is no
    llama-swap configuration at all."""
    root = read(text, file)
    importing = _Importing(root, os.environ if environment is None else environment)
    if not root.get("models") and not root.get("peers"):
        raise ConfigInvalid(f"{file}:1: models: there are none: is this a configuration of llama-swap?")
    document = Commented(head=(f"From llama-swap's {file}, by `rewarm import llama-swap`.",))
    importing.sections(document)
    return Imported(render(document), tuple(sorted(importing.remarks, key=lambda remark: remark.line)))


class _Importing:
    def __init__(self, root: Item, environment: Mapping[str, str]) -> None:
        self._root = root
        self._environment = environment
        self._macros = {name: item.text for name, item in root.get("macros").items()}
        self.remarks: list[Remark] = []

    def sections(self, document: Commented) -> None:
        self._top_level()
        keys = self._keys()
        if keys:
            document.values["keys"] = keys
        models = Commented()
        for name, item in self._root.get("models").items():
            converted = convert_model(name, item, self._root, self._macros, self._environment, self.remarks)
            if converted is not None:
                models.values[name] = converted
        self._peers(models)
        placement = together(self._root, list(models.values), self.remarks, models)
        if placement is not None:
            document.values["placement"] = placement
        self._preload(models)
        document.values["models"] = models

    def _top_level(self) -> None:
        for name, item in self._root.items():
            if name in _NO_COUNTERPART:
                self.remarks.append(Remark(item.line, name, _NO_COUNTERPART[name]))
            elif name not in _ELSEWHERE:
                self.remarks.append(Remark(item.line, name, "this field is not known here"))
            elif _ELSEWHERE[name]:
                self.remarks.append(Remark(item.line, name, _ELSEWHERE[name], lost=False))

    def _keys(self) -> list[dict[str, Any]]:
        out = []
        for number, item in enumerate(self._root.get("apiKeys").entries(), 1):
            try:
                key = Macros(self._macros, self._environment).fill(item.text)
            except MacroProblem as problem:
                self.remarks.append(Remark(item.line, f"apiKeys[{number - 1}]", f"{problem}: this key is left out"))
                continue
            out.append({"name": f"key-{number}", "sha256": hashlib.sha256(key.encode()).hexdigest()})
        return out

    def _peers(self, models: Commented) -> None:
        for peer, item in self._root.get("peers").items():
            at = f"peers.{peer}"
            url, key_env = item.get("proxy").text.rstrip("/"), self._key_env(at, item.get("apiKey"))
            for name, field in item.items():
                if name in ("filters", "timeouts"):
                    self.remarks.append(
                        Remark(field.line, f"{at}.{name}", "requests to a remote are sent as they come")
                    )
            for entry in item.get("models").entries():
                if entry.text in models.values:
                    text = f"there is a model {entry.text!r} already"
                    self.remarks.append(Remark(entry.line, f"{at}.models", text))
                    continue
                remote: dict[str, Any] = {"engine": "remote", "url": url if url.endswith("/v1") else f"{url}/v1"}
                if key_env:
                    remote["key_env"] = key_env
                models.values[entry.text] = Commented(remote)

    def _key_env(self, at: str, key: Item) -> str | None:
        if not key or not key.text:
            return None
        named = re.fullmatch(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)\}", key.text)
        if named:
            return named[1]
        variable = re.sub(r"[^A-Z0-9]", "_", at.removeprefix("peers.").upper()) + "_API_KEY"
        self.remarks.append(Remark(key.line, f"{at}.apiKey", f"a key stands in no file: export {variable}=…"))
        return variable

    def _preload(self, models: Commented) -> None:
        preload = self._root.get("hooks").get("on_startup").get("preload")
        for entry in preload.entries():
            name, at = entry.text, "hooks.on_startup.preload"
            if name not in models.values:
                self.remarks.append(Remark(entry.line, at, f"there is no model {name!r}"))
            else:
                text = f"load it with `rewarm wake {name}`; with `min_replicas: 1` it is loaded always, and never idles"
                self.remarks.append(Remark(entry.line, at, text))
        for name, item in self._root.get("hooks").items():
            if name != "on_startup":
                self.remarks.append(Remark(item.line, f"hooks.{name}", "this field is not known here"))
