"""The hub's cache on this machine: ``models--org--name/{refs,blobs,snapshots}``, read and written.

``refs/main`` holds a commit; ``snapshots/<commit>/`` has a symlink for each file to ``blobs/<digest>``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from rewarm.hub import HubReference
from snapshots.checkpoint import INDEX_FILE

_COMMIT = re.compile(r"^[0-9a-f]{40}$")


class HubCache:
    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, reference: HubReference) -> Path | None:
        """The folder of a checkpoint that is here, or the GGUF file; None where anything of it is missing.

        Only names are looked at: what an interrupted download left has no names here yet.
        """
        commit = self.commit(reference)
        if commit is None:
            return None
        folder = self.snapshot(reference.repo, commit)
        if reference.file is not None:
            file = folder / reference.file
            return file if file.is_file() else None
        if not (folder / "config.json").is_file():
            gguf = sorted(folder.glob("*.gguf"))
            return gguf[0] if len(gguf) == 1 and gguf[0].is_file() else None
        return folder if _has_weights(folder) else None

    def commit(self, reference: HubReference) -> str | None:
        if _COMMIT.match(reference.revision):
            return reference.revision
        try:
            text = (self.home(reference.repo) / "refs" / reference.revision).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return text if _COMMIT.match(text) else None

    def home(self, repo: str) -> Path:
        return self.root / f"models--{repo.replace('/', '--')}"

    def snapshot(self, repo: str, commit: str) -> Path:
        return self.home(repo) / "snapshots" / commit

    def blob(self, repo: str, digest: str) -> Path:
        return self.home(repo) / "blobs" / digest

    def models(self) -> Iterator[tuple[HubReference, Path]]:
        """Everything whole that is here, by the revisions that have a name."""
        try:
            homes = sorted(self.root.glob("models--*--*"))
        except OSError:
            return
        for home in homes:
            repo = home.name.removeprefix("models--").replace("--", "/", 1)
            refs = home / "refs"
            for ref in sorted(path for path in refs.rglob("*") if path.is_file()):
                reference = HubReference(repo, ref.relative_to(refs).as_posix())
                found = self.find(reference)
                if found is not None:
                    yield reference, found
                    continue
                commit = self.commit(reference)
                if commit is not None:  # several GGUF files: each is a model
                    for path in sorted(self.snapshot(repo, commit).glob("*.gguf")):
                        yield HubReference(repo, reference.revision, path.name), path

    def place(self, repo: str, commit: str, name: str, blob: Path) -> None:
        """The name ``name`` of the commit for a blob that is whole."""
        link = self.snapshot(repo, commit) / name
        link.parent.mkdir(parents=True, exist_ok=True)
        target = os.path.relpath(blob, link.parent)
        temporary = link.with_name(f".{link.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(link)

    def name(self, reference: HubReference, commit: str) -> None:
        """Last of all: the revision is this commit."""
        if _COMMIT.match(reference.revision):
            return
        path = self.home(reference.repo) / "refs" / reference.revision
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(commit, encoding="ascii")
        temporary.replace(path)


def _has_weights(folder: Path) -> bool:
    try:
        index = json.loads((folder / INDEX_FILE).read_bytes())
        names = set(index["weight_map"].values())
    except FileNotFoundError:
        return any(path.is_file() for path in folder.glob("*.safetensors"))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
    return all((folder / str(name)).is_file() for name in names)
