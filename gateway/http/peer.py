"""What a request and its answer need of the connection they are on."""

from __future__ import annotations

from typing import Protocol


class Peer(Protocol):
    paused: bool
    """The client reads too slowly: :meth:`drain` before the next write."""

    @property
    def remote(self) -> str | None: ...

    def write(self, data: bytes) -> None:
        """Raise ConnectionResetError when the client is gone."""

    async def drain(self) -> None:
        """Wait until what was written has left, more or less. Raise ConnectionResetError when the client is gone."""

    def send_continue(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None: ...
