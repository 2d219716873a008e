from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The two loops report ends of connections differently: the client must be right on both."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
