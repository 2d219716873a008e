"""Which models may be loaded at once: llama-swap's groups and matrix, as far as a number of models can say it.

llama-swap runs one model at a time unless groups or a matrix say otherwise; it knows no memory. Here memory decides,
and ``placement.max_models`` bounds the number besides.
"""

from __future__ import annotations

import re

from rewarm.imports.document import Commented, Remark
from rewarm.imports.llama_swap.reading import Item

_NO_LIMIT = "rewarm loads models together as far as their memory allows: give each `memory` or `source`"
_WORD = re.compile(r"\s*([A-Za-z0-9]+|[&|()]|\+[A-Za-z0-9_-]+)")


def together(root: Item, names: list[str], remarks: list[Remark], models: Commented) -> Commented | None:
    """The section ``placement``, or None where nothing bounds the number."""
    if root.get("matrix"):
        return _matrix(root.get("matrix"), remarks)
    if root.get("groups"):
        return _groups(root.get("groups"), names, remarks, models)
    if len(names) < 2:
        return None
    return Commented(
        {"max_models": 1}, notes={"max_models": "one at a time, as llama-swap does; remove it to go by memory"}
    )


def _groups(groups: Item, names: list[str], remarks: list[Remark], models: Commented) -> Commented | None:
    """A group that swaps holds one model; one that does not, all of its. Exclusive groups exclude each other."""
    most_alone, beside = 0, 0
    placed: set[str] = set()
    for name, group in groups.items():
        members = [entry.text for entry in group.get("members").entries()]
        placed |= set(members)
        at_once = 1 if group.get("swap").value is not False else len(members)
        persistent = group.get("persistent").value is True
        if persistent:
            for member in members:
                if isinstance(models.values.get(member), Commented):
                    models.values[member].values["pinned"] = True
                    models.values[member].notes["pinned"] = f"group {name}: persistent"
        if persistent or group.get("exclusive").value is False:
            beside += at_once
        else:
            most_alone = max(most_alone, at_once)
        text = f"which models exclude each other is not kept, only how many run at once. {_NO_LIMIT}"
        remarks.append(Remark(group.line, f"groups.{name}", text, lost=len(members) > 1 or not persistent))
    if any(name not in placed for name in names):
        most_alone = max(most_alone, 1)
    return Commented({"max_models": max(most_alone + beside, 1)}, notes={"max_models": "from the groups"})


def _matrix(matrix: Item, remarks: list[Remark]) -> Commented:
    sets = dict(matrix.get("sets").items())
    texts = {name: item.text for name, item in sets.items()}
    largest = 1
    for name, item in sets.items():
        try:
            largest = max(largest, _largest(item.text, texts, (name,)))
        except ValueError as error:
            remarks.append(Remark(item.line, f"matrix.sets.{name}", str(error)))
    remarks.append(Remark(matrix.line, "matrix", f"which models go together is not kept, only how many. {_NO_LIMIT}"))
    costs = matrix.get("evict_costs")
    if costs:
        remarks.append(Remark(costs.line, "matrix.evict_costs", "set `priority: high` for what shall stay longest"))
    return Commented({"max_models": largest}, notes={"max_models": "the largest set of the matrix"})


def _largest(text: str, sets: dict[str, str], inside: tuple[str, ...]) -> int:
    """How many models the largest combination of an expression has. Raise ValueError."""
    words = _WORD.findall(text)
    if "".join(words) != re.sub(r"\s", "", text):
        raise ValueError(f"{text!r} cannot be read")
    position = 0

    def either() -> int:
        nonlocal position
        most = both()
        while position < len(words) and words[position] == "|":
            position += 1
            most = max(most, both())
        return most

    def both() -> int:
        nonlocal position
        total = one()
        while position < len(words) and words[position] == "&":
            position += 1
            total += one()
        return total

    def one() -> int:
        nonlocal position
        if position >= len(words):
            raise ValueError(f"{text!r} ends too early")
        word = words[position]
        position += 1
        if word == "(":
            found = either()
            if position >= len(words) or words[position] != ")":
                raise ValueError(f"{text!r} misses a )")
            position += 1
            return found
        if word.startswith("+"):
            name = word[1:]
            if name in inside or name not in sets:
                raise ValueError(f"{text!r}: the set {name!r} is {'inside itself' if name in inside else 'not there'}")
            return _largest(sets[name], sets, (*inside, name))
        if word in "&|)":
            raise ValueError(f"{text!r}: {word!r} is out of place")
        return 1

    found = either()
    if position < len(words):
        raise ValueError(f"{text!r}: {words[position]!r} is out of place")
    return found
