"""OpenAI's conventions over durable jobs, put together for one gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from fleet import Batches, FileLimits, Files, FleetClient
from gateway.drain import Drain
from gateway.holding import Holding
from gateway.http import Answer, Request
from gateway.jobs import JobDesk
from gateway.keys import Keyring
from gateway.openai.batches import BatchPages
from gateway.openai.files import FilePages
from gateway.openai.responses import Responses
from gateway.openai.runner import BatchRunner
from gateway.view import View
from rewarm.config import FilesConfig

Page = Callable[[Request, str], Awaitable[Answer]]


class OpenAIOffice:
    """``exact`` and ``below`` are for the gateway's table of paths (those below a path know their own methods),
    ``loops`` for its background, ``responses.create`` for inference requests that ask for the background."""

    def __init__(
        self,
        config: FilesConfig,
        client: FleetClient,
        desk: JobDesk,
        *,
        keys: Keyring,
        view: View,
        drain: Drain,
        holding: Holding,
        owner: str,
    ) -> None:
        limits = FileLimits(
            max_file=config.max_file,
            max_bytes_tenant=config.max_bytes_per_tenant,
            max_bytes_total=config.max_bytes,
            retention_s=int(config.retention.total_seconds()),
        )
        self.files = Files(client, limits)
        self.batches = Batches(client, retention_s=limits.retention_s)
        self.responses = Responses(desk, keys)
        self._file_pages = FilePages(self.files, keys, holding)
        self._batch_pages = BatchPages(self.batches, desk, keys)
        self._runner = BatchRunner(self.batches, self.files, desk, view, keys, owner, leaving=lambda: drain.begun)

    def exact(self) -> Mapping[tuple[str, str], Page]:
        return {
            ("POST", "/v1/files"): self._file_pages.create,
            ("GET", "/v1/files"): self._file_pages.list,
            ("POST", "/v1/batches"): self._batch_pages.create,
            ("GET", "/v1/batches"): self._batch_pages.list,
        }

    def below(self) -> Mapping[str, Page]:
        return {
            "/v1/responses/": self.responses.one,
            "/v1/files/": self._file_pages.one,
            "/v1/batches/": self._batch_pages.one,
        }

    def loops(self) -> Iterable[tuple[str, Callable[[], Awaitable[None]]]]:
        return (("batches", self._runner.run),)
