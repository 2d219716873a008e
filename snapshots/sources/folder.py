"""A folder that is mounted here, perhaps from a server: read in pieces too, so that a copy can be limited and
resumed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from snapshots.errors import SourceChanged, SourceUnavailable
from snapshots.sources.base import Listing, RemoteFile, Transient, choose_files

_PIECE_BYTES = 2**20
_MAX_FILES = 10_000


class FolderSource:
    """A checkpoint's folder, a snapshot's, or one GGUF file."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._folder = self._path.parent if path.suffix == ".gguf" else self._path

    async def listing(self) -> Listing:
        return await asyncio.to_thread(self._list)

    async def look(self, name: str) -> RemoteFile | None:
        try:
            status = await asyncio.to_thread((self._folder / name).stat)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SourceUnavailable(f"{self._folder / name}: {error.strerror or error}") from error
        return RemoteFile(name, status.st_size, str(status.st_mtime_ns))

    async def read(self, file: RemoteFile, start: int, stop: int) -> AsyncIterator[bytes]:
        path = self._folder / file.name
        try:
            descriptor = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceUnavailable(f"{path}: {error.strerror or error}") from error
        try:
            status = os.fstat(descriptor)
            if (status.st_size, str(status.st_mtime_ns)) != (file.size, file.version):
                raise SourceChanged(f"{path}: was written to while it was copied")
            while start < stop:
                want = min(_PIECE_BYTES, stop - start)
                try:
                    piece = await asyncio.to_thread(os.pread, descriptor, want, start)
                except OSError as error:
                    raise Transient(f"{path}: {error.strerror or error}") from error
                if not piece:
                    raise SourceChanged(f"{path}: ended at {start}")
                start += len(piece)
                yield piece
        finally:
            os.close(descriptor)

    async def close(self) -> None:
        pass

    def _list(self) -> Listing:
        try:
            if self._path != self._folder:
                names = [self._path.name]
            else:
                names = []
                for path in sorted(self._folder.rglob("*")):
                    if path.is_file():
                        names.append(path.relative_to(self._folder).as_posix())
                    if len(names) > _MAX_FILES:
                        raise SourceUnavailable(f"{self._folder}: holds more than {_MAX_FILES} files")
                names = choose_files(names)
            files = []
            for name in names:
                status = (self._folder / name).stat()
                files.append(RemoteFile(name, status.st_size, str(status.st_mtime_ns)))
        except OSError as error:
            raise SourceUnavailable(f"{self._path}: {error.strerror or error}") from error
        return Listing(str(self._path), tuple(files))
