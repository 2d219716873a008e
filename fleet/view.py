"""One reading of the fleet's shared state, as frozen values: what the controller decides on and gateways route by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rewarm.messages import Canary, CatalogueEntry, Explanation, ModelStatus, Progress, ReplicaReport, Want, WorkerBeat


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits for one model (granted and running excluded): tickets of gateways, and jobs."""

    count: int = 0  # tickets
    oldest_ms: int = 0  # Redis time of the oldest one's first enqueue; 0 when none waits
    highest_band: int | None = None  # the band that is served next, jobs included
    jobs: int = 0  # all that wait
    oldest_job_ms: int = 0  # as `oldest_ms`
    handed_off: int = 0  # those of `jobs` that came from a gateway and wait in an interactive band


@dataclass(frozen=True, slots=True)
class FleetView:
    """``workers`` holds the living; ``wants`` also those of workers that are gone, until the leader removes them."""

    now_ms: int
    catalogue: Mapping[str, CatalogueEntry] = field(default_factory=dict)
    workers: Mapping[str, WorkerBeat] = field(default_factory=dict)
    # Of workers with wants that an earlier run of them left behind: what that run said last.
    former: Mapping[str, WorkerBeat] = field(default_factory=dict)
    # What the leader says for places of a cluster where no worker speaks, or only one that leaves.
    absent: Mapping[str, WorkerBeat] = field(default_factory=dict)
    progress: Mapping[str, Progress] = field(default_factory=dict)  # by replica
    statuses: Mapping[str, ModelStatus] = field(default_factory=dict)
    canaries: Mapping[str, Canary] = field(default_factory=dict)
    cordons: Mapping[str, str] = field(default_factory=dict)  # drained worker → its boot, which takes nothing new
    explanations: Mapping[str, Explanation] = field(default_factory=dict)  # of models that are wanted and do not load
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    demand_ms: Mapping[str, int] = field(default_factory=dict)
    wants: Mapping[str, Mapping[str, Want]] = field(default_factory=dict)  # worker → replica → want
    term: int = 0
    leader: str | None = None  # None when nobody's term runs
    gateways: int = 0

    def with_absent(self) -> FleetView:
        """With the leader's word among the workers' where it has the last one: for whoever shows the fleet."""
        spoken = {
            n: b for n, b in self.absent.items() if n not in self.workers or (self.workers[n].draining and b.replicas)
        }
        return replace(self, workers={**self.workers, **spoken}) if spoken else self

    def resolve(self, name: str) -> CatalogueEntry | None:
        """The entry that a client's model name or alias means."""
        entry = self.catalogue.get(name)
        if entry is not None:
            return entry
        return next((entry for entry in self.catalogue.values() if name in entry.aliases), None)

    def replicas(self, model: str) -> list[tuple[WorkerBeat, ReplicaReport]]:
        """Every replica of ``model`` that a living worker reports, in whatever state."""
        return [(beat, report) for beat in self.workers.values() for report in beat.replicas if report.model == model]
