"""``hf:org/name@revision``: a model of a Hugging Face hub, as a configuration names it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "hf:"
DEFAULT_REVISION = "main"

_FORM = re.compile(
    r"^hf:(?P<repo>[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})"
    r"(?:/(?P<file>[^@]+\.gguf))?(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]{0,199}))?$"
)


@dataclass(frozen=True, slots=True)
class HubReference:
    """``file`` is one GGUF file of the repository; without it a checkpoint's folder is meant."""

    repo: str  # org/name
    revision: str = DEFAULT_REVISION  # branch, tag or commit
    file: str | None = None

    def __str__(self) -> str:
        at = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{PREFIX}{self.repo}{f'/{self.file}' if self.file else ''}{at}"


def is_hub(source: object) -> bool:
    return str(source).startswith(PREFIX)


def parse_reference(source: object) -> HubReference:
    """Raise ValueError for what is no reference to a hub."""
    match = _FORM.match(str(source))
    if match is None or ".." in str(source):
        raise ValueError(f"{str(source)!r}: write hf:org/name, hf:org/name@revision or hf:org/name/file.gguf")
    return HubReference(match["repo"], match["revision"] or DEFAULT_REVISION, match["file"])
