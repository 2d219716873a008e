"""What the leader publishes: catalogue, wants, statuses. Each write is a script that first compares leader and term."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fleet.client import FleetClient
from fleet.leader import Leader, LostLeadership
from fleet.scripts import ArgList
from rewarm.messages import Canary, CatalogueEntry, Explanation, ModelStatus, Want, WorkerBeat, encode

_Change = tuple[str, str, bytes]  # hash, field ('' clears the hash), value (b'' deletes the field)


class Publisher:
    """Raise :class:`LostLeadership` from every method once the term of ``leader`` is over."""

    def __init__(self, client: FleetClient, leader: Leader) -> None:
        self._client = client
        self._keys = client.keys
        self._leader = leader

    async def catalogue(self, entries: Mapping[str, CatalogueEntry] | Iterable[CatalogueEntry]) -> None:
        """Replace the catalogue; forget failures of models that are no longer in it. Demand for them stays until their
        queues have failed: it is what names these."""
        listed = list(entries.values() if isinstance(entries, Mapping) else entries)
        names = {entry.model for entry in listed}
        changes: list[_Change] = [(self._keys.catalogue, "", b"")]
        changes += [(self._keys.catalogue, entry.model, encode(entry)) for entry in listed]
        for key in (self._keys.status, self._keys.explanations, self._keys.canaries):
            known = [name.decode() for name in await self._client.call("HKEYS", key)]
            changes += [(key, name, b"") for name in known if name not in names and not name.startswith("@")]
        await self._write(changes, "catalogue")

    async def want(self, wants: Sequence[Want]) -> None:
        """All of them or none."""
        changes = [(self._keys.want(want.worker), want.replica, encode(want)) for want in wants]
        await self._write(changes, "want", wants[0].model if len({want.model for want in wants}) == 1 else "")

    async def unwant(self, worker: str, replica: str) -> None:
        await self._write([(self._keys.want(worker), replica, b"")], "want")

    async def absent(self, beats: Mapping[str, WorkerBeat]) -> None:
        """Replace what is said for places without a worker."""
        changes: list[_Change] = [(self._keys.absent, "", b"")]
        changes += [(self._keys.absent, name, encode(beat)) for name, beat in beats.items()]
        await self._write(changes, "beat")

    async def status(self, status: ModelStatus) -> None:
        await self._write([(self._keys.status, status.model, encode(status))], "status", status.model)

    async def forget_status(self, model: str) -> None:
        await self._write([(self._keys.status, model, b"")], "status", model)

    async def canary(self, canary: Canary) -> None:
        await self._write([(self._keys.canaries, canary.model, encode(canary))], "status", canary.model)

    async def cordon(self, worker: str, boot: str) -> None:
        """This run of the worker is given nothing new, by no leader."""
        await self._write([(self._keys.cordons, worker, boot.encode())], "want")

    async def uncordon(self, worker: str) -> None:
        await self._write([(self._keys.cordons, worker, b"")], "want")

    async def explain(self, explanation: Explanation) -> None:
        model = explanation.model
        await self._write([(self._keys.explanations, model, encode(explanation))], "waits", model)

    async def unexplain(self, model: str) -> None:
        await self._write([(self._keys.explanations, model, b"")], "waits", model)

    async def _write(self, changes: Sequence[_Change], reason: str, model: str = "") -> None:
        owner, term = self._leader.claim()
        if not changes:
            return
        hashes = list(dict.fromkeys(key for key, _, _ in changes))
        keys = [self._keys.leader, self._keys.bell, self._keys.wanted, *hashes]
        arguments: ArgList = [owner, term, reason, model, *(self._keys.wanted_of(key) for key in hashes)]
        for key, field, value in changes:
            arguments += [hashes.index(key) + 1, field, value]
        if await self._client.scripts.run("publish", keys, arguments) < 0:
            raise LostLeadership(f"{owner} no longer leads in term {term}")
