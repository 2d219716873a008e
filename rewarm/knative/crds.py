"""The schemas of Knative's own definitions, closed: a field that they do not have is an error.

A real API server drops unknown fields in silence or refuses them, depending on the client; either way they do nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

from rewarm.errors import KnativeCheckUnavailable
from rewarm.knative.finding import Problem
from rewarm.knative.manifest import Manifest, join

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError

_FILES = {"Service": "service.yaml", "Revision": "revision.yaml"}

_ELSEWHERE = {
    "terminationGracePeriodSeconds": (
        "Knative has no such field: a pod's grace period is its timeoutSeconds",
        "Remove it and set timeoutSeconds (`knative.timeout`), or use `--backend deployment`, where it exists",
    ),
    "lifecycle": (
        "Knative has no hooks: SIGTERM comes 30 s late, and nothing runs before it",
        "Remove it, or use `--backend deployment`, where preStop exists",
    ),
}


def schema_problems(manifest: Manifest) -> Iterator[Problem]:
    """Raise KnativeCheckUnavailable where the library is missing."""
    name = _FILES.get(manifest.kind)
    if name is None:
        return
    errors = sorted(_validator(name).iter_errors(manifest.document), key=lambda error: [str(p) for p in error.path])
    for error in errors:
        yield from _problems(error)


def _problems(error: ValidationError) -> Iterator[Problem]:
    at = list(error.absolute_path)
    if error.validator == "additionalProperties":
        for field in sorted(set(error.instance) - set(error.schema.get("properties", {}))):
            yield _unknown(field, at, list(error.schema.get("properties", {})))
    elif error.validator == "required":
        missing = str(error.message).split("'")[1]
        yield Problem("schema", join(*at, missing), f"{missing} is missing", "the schema requires it", f"Add {missing}")
    else:
        shown = _short(error.instance)
        wanted = " or ".join(_types(error.schema)) or str(error.message)
        where = join(*at)
        yield Problem(
            "schema", where, f"{where or 'the object'} is {shown}", f"the schema wants {wanted}", "Correct its type"
        )


def _unknown(field: str, at: list[str | int], known: list[str]) -> Problem:
    path = join(*at, field)
    if field in _ELSEWHERE:
        why, change = _ELSEWHERE[field]
        return Problem("field-not-in-schema", path, f"{field} is set", why, change)
    near = difflib.get_close_matches(field, known, n=1)
    change = f"Write {near[0]}" if near else "Remove it"
    return Problem("unknown-field", path, f"{field} is no field here", "it is refused or dropped in silence", change)


def _types(schema: Mapping[str, Any]) -> list[str]:
    if "anyOf" in schema:
        return [str(one.get("type")) for one in schema["anyOf"]]
    return [str(schema["type"])] if "type" in schema else []


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


@cache
def _validator(name: str) -> Draft202012Validator:
    try:
        from jsonschema import Draft202012Validator
    except ImportError as error:
        raise KnativeCheckUnavailable("`rewarm knative check` needs the library jsonschema") from error
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a tenth of the time for these 100 KB
    text = files("rewarm.knative").joinpath("crds", name).read_text(encoding="utf-8")
    definition = yaml.load(text, Loader=loader)  # noqa: S506 -- both are safe loaders
    return Draft202012Validator(_closed(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]))


def _closed(schema: Any) -> Any:
    """With ``additionalProperties: false`` wherever properties are listed and no others are kept."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: _closed(value) for key, value in schema.items()}
    if isinstance(out.get("properties"), dict) and not out.get("x-kubernetes-preserve-unknown-fields"):
        out.setdefault("additionalProperties", False)
    return out
