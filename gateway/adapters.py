"""A request to an adapter, held against the replicas of its base: which of them serve it."""

from __future__ import annotations

from gateway.view import View
from rewarm.errors import AdapterLoadFailed, ModelRemoved
from rewarm.messages import CatalogueEntry


class Elsewhere(Exception):
    """The replica that was granted was started without the adapter: another one has it, or will."""


def refuse_broken(view: View, entry: CatalogueEntry) -> None:
    """Raise AdapterLoadFailed where its base runs without it, and ModelRemoved where it is configured no longer."""
    if not entry.base:
        return
    if why := view.broken(entry.model):
        raise _failed(entry, why)
    now = view.fleet.catalogue.get(entry.model)
    if now is None or now.base != entry.base:
        raise ModelRemoved(f"the adapter {entry.model!r} of {entry.base!r} was removed from the configuration")


async def check_served(view: View, entry: CatalogueEntry, replica: str) -> None:
    """Before a grant is taken. Raise Elsewhere, and as :func:`refuse_broken`."""
    report = view.report(replica)
    if (report is None or entry.model not in report.adapters) and view.available:
        await view.refresh()  # a grant may overtake the reading that shows its replica as ready
        report = view.report(replica)
    refuse_broken(view, entry)
    if report is None or entry.model not in report.adapters:
        raise Elsewhere
    if why := report.adapters[entry.model]:
        raise _failed(entry, why)


def _failed(entry: CatalogueEntry, why: str) -> AdapterLoadFailed:
    return AdapterLoadFailed(f"the adapter {entry.model!r} of {entry.base!r} could not be loaded: {why}")
