"""What a check finds: where it stands, what is wrong, why, and what to change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "note"]
"""error: the cluster refuses it, or it fails in use · warning: it works, and hurts · note: the cluster must have it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """As a rule finds it, in one object. ``path`` is a path in that object, ``containers[0]`` for places in a list."""

    rule: str
    path: str
    what: str
    why: str
    change: str
    level: Level = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with its file and its object, ``Kind/name``."""

    level: Level
    rule: str
    file: str
    object: str
    path: str
    what: str
    why: str
    change: str

    @classmethod
    def of(cls, problem: Problem, *, file: str, name: str) -> Finding:
        p = problem
        return cls(p.level, p.rule, file, name, p.path, p.what, p.why, p.change)

    def sentence(self) -> str:
        """``what`` and ``why`` in a sentence, ``change`` in the next."""
        return f"{self.what}: {self.why}. {self.change}."


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """In the order of a report: errors, warnings, notes; each by file and object."""
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(findings, key=lambda f: (order[f.level], f.file, f.object, f.path, f.rule))
