"""A line per model under the log of `serve`, on a terminal."""

from __future__ import annotations

import asyncio
import sys

from rich.console import Console
from rich.live import Live as RichLive
from rich.text import Text

from rewarm.cli.api import Gateway
from rewarm.cli.banner import base_url
from rewarm.cli.table import rows, table
from rewarm.config import Config
from rewarm.errors import OperatorError

EVERY_S = 0.5


class Live:
    """Asks the gateway like `rewarm ps`; ``line`` prints a line of a child's log above."""

    def __init__(self, config: Config, console: Console) -> None:
        self._console = console
        self._gateway = Gateway(base_url(config))
        self._live = RichLive(Text("starting"), console=console, auto_refresh=False, transient=True)

    def line(self, text: str) -> None:
        self._console.print(Text.from_ansi(text) if "\x1b" in text else Text(text), soft_wrap=True)

    # What `serve` itself logs goes the same way: this object is the log's stream, one line a write.

    def write(self, text: str) -> int:
        self.line(text.rstrip("\n"))
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return self._console.is_terminal

    async def run(self) -> None:
        """Until cancelled."""
        self._live.start()
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                try:
                    status = await asyncio.to_thread(self._gateway.status)
                except OperatorError:
                    continue  # starting, or stopping; the log says which
                self._live.update(table(rows(status)), refresh=True)
        finally:
            self._live.stop()
            sys.stderr.flush()
