"""How several processes share the tests (``pytest -n 2``): which tests stay together, and what begins.

A file stays in one process, for the sake of its fixtures. Files with a real vLLM in them are one group: two engines at
once would be slow beyond their tests' patience on two cores. It takes longest and comes first. (xdist's own
``--dist=loadgroup`` finds no group under pytest 9.2: it writes to ``Item._nodeid``, which is no more.)
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ENGINES = "real engines"


@functools.cache
def group_of_file(file: str) -> str:
    """``file`` relative to the repository, as node ids have it."""
    if "pytest.mark.vllm" not in (ROOT / file).read_text(encoding="utf-8"):
        return file
    return ENGINES


def group_of(nodeid: str) -> str:
    return group_of_file(nodeid.partition("::")[0])


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Groups come to processes in the order of their first tests."""
    return sorted(items, key=lambda item: group_of(item.nodeid) != ENGINES)


class Sharing:
    """The plugin."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> object:
        from xdist.scheduler import LoadScopeScheduling

        class ByGroup(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
            def _split_scope(self, nodeid: str) -> str:
                return group_of(nodeid)

        config.option.loadscopereorder = False
        return ByGroup(config, log)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if hasattr(config, "workerinput"):
            items[:] = in_order(items)
