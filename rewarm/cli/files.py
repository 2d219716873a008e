"""Files that a command writes for its user: whole or not at all, and never over another one unasked."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rewarm.errors import OutputExists, StateUnusable


def write_new(path: Path, text: str, *, force: bool) -> None:
    """Raise OutputExists where the file is there already, StateUnusable where it cannot be written."""
    try:
        if path.exists() and not force:
            raise OutputExists(f"{path} is there already")
        descriptor, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            temporary.chmod(0o600)  # it may name what is nobody else's business
            if force:
                temporary.replace(path)
            else:
                os.link(temporary, path)  # fails where somebody else was faster
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError as error:
        raise OutputExists(f"{path} is there already") from error
    except OSError as error:
        raise StateUnusable(f"{path} cannot be written: {error.strerror or error}") from error
