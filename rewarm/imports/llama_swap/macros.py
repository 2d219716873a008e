"""llama-swap's macros: ``${name}`` from the model, then from the file, ``${env.NAME}`` from the environment. Pure.

A macro may use others, and ``${MODEL_ID}``. ``${PORT}`` and ``${PID}`` stay: they mean the same here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_MACRO = re.compile(r"\$\{([A-Za-z0-9_.-]+)\}")
_OURS = frozenset(("PORT", "PID"))


class MacroProblem(Exception):
    """Unknown, or defined by itself."""


class Macros:
    """``values`` by name, the model's own over the file's."""

    def __init__(self, values: Mapping[str, Any], environment: Mapping[str, str], model: str | None = None) -> None:
        self._values = {name: _text(value) for name, value in values.items()}
        if model is not None:
            self._values["MODEL_ID"] = model
        self._environment = environment

    def fill(self, text: str) -> str:
        """Raise MacroProblem."""
        return self._fill(text, ())

    def _fill(self, text: str, inside: tuple[str, ...]) -> str:
        def value(match: re.Match[str]) -> str:
            name = match[1]
            if name in _OURS:
                return match[0]
            if name in inside:
                raise MacroProblem(f"the macro ${{{name}}} is defined by itself: {' → '.join((*inside, name))}")
            if name.startswith("env."):
                found = self._environment.get(name[4:])
                if found is None:
                    raise MacroProblem(f"the environment has no {name[4:]}")
                return found
            if name not in self._values:
                raise MacroProblem(f"there is no macro ${{{name}}}")
            return self._fill(self._values[name], (*inside, name))

        return _MACRO.sub(value, text)


def _text(value: Any) -> str:
    """As llama-swap writes it: a number or truth value as YAML shows it."""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()
