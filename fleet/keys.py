"""The name of every key, in one place, with what keeps it from staying for ever.

All names start with ``{rw:<fleet>}:``. The braces make Redis Cluster place every key of a fleet in one slot, which is
what lets one script move a ticket, its lease and its grant together.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import Enum

from rewarm.config import BANDS as _BAND_NAMES

BANDS: tuple[int, ...] = tuple(sorted(_BAND_NAMES.values()))
"""Priority bands of requests whose client waits, served strictly in this order."""

JOB_BANDS: dict[str, int] = {name: len(BANDS) + band for name, band in _BAND_NAMES.items()}
"""Priority → band of durable jobs, served after all interactive ones."""

ALL_BANDS: tuple[int, ...] = (*BANDS, *sorted(JOB_BANDS.values()))


def idempotency_digest(tenant: str, key: str) -> str:
    """Both are clients' text, and of any length."""
    return hashlib.sha256(f"{len(tenant)}:{tenant}:{key}".encode()).hexdigest()[:32]


class Life(Enum):
    """What ends a key."""

    FOREVER = "forever"  # one of each per fleet, worker or model: bounded by the configuration
    LIVE = "live"  # present exactly while tickets or jobs are
    TTL = "ttl"  # Redis removes it


@dataclass(frozen=True, slots=True)
class Keys:
    fleet: str

    @property
    def prefix(self) -> str:
        return f"{{rw:{self.fleet}}}:"

    def _name(self, rest: str) -> str:
        return f"{{rw:{self.fleet}}}:{rest}"

    # --- the queue ---------------------------------------------------------------------------------------------------

    def ready(self, model: str, band: int) -> str:
        """ZSET ticket → virtual start time: the tickets that wait, in their order."""
        return self._name(f"m:{model}:ready:{band}")

    def virtual_time(self, model: str, band: int) -> str:
        """HASH ``*`` the band's virtual time, ``#`` arrivals, ``@`` epoch, ``=<tenant>`` a tenant's finish."""
        return self._name(f"m:{model}:vt:{band}")

    def since(self, model: str) -> str:
        """ZSET ticket → time of its first enqueue, over all bands: counts the waiting and finds the oldest."""
        return self._name(f"m:{model}:since")

    @property
    def lease(self) -> str:
        """ZSET ticket → deadline ms: granted and not redeemed (later also: jobs that run)."""
        return self._name("lease")

    def ticket(self, ticket: str) -> str:
        return self._name(f"t:{ticket}")

    def claim(self, request: str) -> str:
        """STRING the answer to a claim, so that its repeat gets the same one."""
        return self._name(f"claim:{request}")

    def again(self, digest: str) -> str:
        """STRING the place an abandoned ticket kept for its client's retry."""
        return self._name(f"again:{digest}")

    # --- gateways ----------------------------------------------------------------------------------------------------

    @property
    def gateways(self) -> str:
        """ZSET gateway boot id → deadline ms."""
        return self._name("gw")

    def held(self, gateway: str) -> str:
        """SET of the tickets that a gateway has in the queue, waiting or granted."""
        return self._name(f"held:{gateway}")

    def grants(self, gateway: str) -> str:
        """STREAM of grants and failures for one gateway."""
        return self._name(f"grants:{gateway}")

    def spent(self, tenant: str, unit: str) -> str:
        """HASH ``<second>:<gateway>`` → what that gateway let the tenant spend then, in ``unit``."""
        return self._name(f"spent:{unit}:{tenant}")

    # --- everybody ---------------------------------------------------------------------------------------------------

    @property
    def bell(self) -> str:
        """STREAM of hints, capped. Carries no work: a lost hint costs one poll."""
        return self._name("bell")

    @property
    def generation(self) -> str:
        """STRING random id of this data set: gone or another one means that Redis came back empty."""
        return self._name("generation")

    @property
    def pulse(self) -> str:
        """HASH ``at`` last sign of anybody, ``grace`` until when nothing expires after nobody could reach Redis."""
        return self._name("pulse")

    @property
    def demand(self) -> str:
        """HASH model → time ms of the last ticket or job. Names every queue that may not be empty, a removed model's
        too."""
        return self._name("demand")

    # --- workers -----------------------------------------------------------------------------------------------------

    @property
    def workers(self) -> str:
        """ZSET worker → deadline ms."""
        return self._name("workers")

    def worker(self, worker: str) -> str:
        """HASH ``beat`` the last heartbeat, ``at`` its time ms. Outlives the deadline, see :class:`fleet.Registry`."""
        return self._name(f"w:{worker}")

    def load(self, replica: str) -> str:
        """HASH ``p`` progress of a load between two heartbeats."""
        return self._name(f"load:{replica}")

    def history(self, worker: str) -> str:
        """HASH model, tier and phase → the last durations."""
        return self._name(f"history:{worker}")

    @property
    def wakes(self) -> str:
        """LIST the newest wakes, ``<ready ms> <replica>``."""
        return self._name("wakes")

    def wakes_of(self, replica: str) -> str:
        """HASH ``<ready ms>`` a wake, ``<ready ms>|<id>`` one that waited for it, ``<ready ms>#`` how many did."""
        return self._name(f"wakes:{replica}")

    # --- the leader --------------------------------------------------------------------------------------------------

    @property
    def leader(self) -> str:
        """HASH owner, term, deadline ms. Never deleted: the next term must be above this one."""
        return self._name("leader")

    @property
    def catalogue(self) -> str:
        """HASH model → entry, and ``@term``."""
        return self._name("catalogue")

    def want(self, worker: str) -> str:
        """HASH replica → want, and ``@term``."""
        return self._name(f"want:{worker}")

    def wanted_of(self, key: str) -> str:
        """The worker that a key of wants belongs to; '' for any other key."""
        wants = self.want("")
        return key[len(wants) :] if key.startswith(wants) else ""

    @property
    def wanted(self) -> str:
        """SET of the workers that have a want, alive or not."""
        return self._name("wanted")

    @property
    def status(self) -> str:
        """HASH model → what the leader remembers of its failure."""
        return self._name("status")

    @property
    def absent(self) -> str:
        """HASH place → heartbeat that the leader writes for it while no worker does, and ``@term``."""
        return self._name("absent")

    @property
    def canaries(self) -> str:
        """HASH model → the last try of its way from cold."""
        return self._name("canaries")

    @property
    def cordons(self) -> str:
        """HASH worker → its boot, which was drained and takes nothing new."""
        return self._name("cordons")

    @property
    def explanations(self) -> str:
        """HASH model → why it waits, while it does."""
        return self._name("explanations")

    @property
    def commands(self) -> str:
        """LIST of the operator's commands until the leader takes them."""
        return self._name("commands")

    # --- requests ----------------------------------------------------------------------------------------------------

    def receipt(self, request: str) -> str:
        return self._name(f"receipt:{request}")

    # --- durable jobs: their ticket's hash is `ticket(id)` -----------------------------------------------------------

    def jobs_since(self, model: str) -> str:
        """ZSET job → time of its submission: the jobs that wait, over all bands."""
        return self._name(f"m:{model}:jobs")

    def spec(self, job: str) -> str:
        """STRING :class:`rewarm.jobs.JobSpec`. Not a field of the hash, which its length would make eight times as
        large in memory."""
        return self._name(f"spec:{job}")

    def body(self, job: str) -> str:
        """STRING what the engine is sent; gone at the end."""
        return self._name(f"body:{job}")

    def result(self, job: str) -> str:
        return self._name(f"result:{job}")

    def out(self, job: str) -> str:
        """STREAM of output, ids ``<attempt>-<seq>``."""
        return self._name(f"out:{job}")

    def idempotency(self, digest: str) -> str:
        """STRING ``<job>|<hash of the body>``, by :func:`idempotency_digest`."""
        return self._name(f"idem:{digest}")

    @property
    def store(self) -> str:
        """HASH ``b`` bytes kept for jobs, ``b=<tenant>`` of a tenant, ``n=<tenant>`` its jobs that have not ended."""
        return self._name("store")

    def jobs_of(self, tenant: str) -> str:
        """ZSET job → time of its submission in µs: all that are remembered."""
        return self._name(f"jobs:{tenant}")

    @property
    def due(self) -> str:
        """ZSET job → start deadline ms, while it has not started."""
        return self._name("due")

    @property
    def ended(self) -> str:
        """ZSET ``o|<job>|<bytes>|<tenant>`` (output) and ``j|…`` (all that is left) → when it is forgotten."""
        return self._name("ended")

    # --- what clients want to be told ---------------------------------------------------------------------------------

    @property
    def hooks(self) -> str:
        """ZSET job → next try ms: the jobs whose outbox holds something."""
        return self._name("hook")

    def outbox(self, job: str) -> str:
        """LIST of what is to be told about a job, ``<event> <ms>``, oldest first."""
        return self._name(f"hook:{job}")

    def hooked(self, job: str) -> str:
        """HASH how far the telling is: ``seq`` events dealt with, ``tries`` of the next, its error, who tries."""
        return self._name(f"hooked:{job}")

    # --- files and batches -------------------------------------------------------------------------------------------

    def file(self, file: str) -> str:
        """HASH ``m`` message, tenant, bytes, expires, created, listed once whole, refs: batches that read it."""
        return self._name(f"file:{file}")

    def file_data(self, file: str) -> str:
        return self._name(f"filedata:{file}")

    def files(self, tenant: str) -> str:
        """ZSET file → created ms: those that can be seen."""
        return self._name(f"files:{tenant}")

    @property
    def file_accounts(self) -> str:
        """HASH ``=<file>`` bytes and tenant, ``@<tenant>`` bytes, ``*`` bytes of all."""
        return self._name("fileaccounts")

    @property
    def file_ends(self) -> str:
        """ZSET file → when the sweep removes it, ms."""
        return self._name("fileends")

    def batch(self, batch: str) -> str:
        """HASH spec, state, step, owner, cursor, counts, times: see :class:`rewarm.files.Batch`."""
        return self._name(f"batch:{batch}")

    def batches(self, tenant: str) -> str:
        """ZSET batch → created ms."""
        return self._name(f"batches:{tenant}")

    @property
    def batches_at_work(self) -> str:
        """ZSET batch → when somebody must look at it, ms; a lease while its gateway is at it."""
        return self._name("batchwork")

    # --- for the leak check ------------------------------------------------------------------------------------------

    def life(self, key: str) -> Life:
        """What ends ``key``. Whatever is not listed here must have a TTL."""
        name = key.removeprefix(self.prefix)
        for life, pattern in _LIVES:
            if pattern.fullmatch(name):
                return life
        return Life.TTL


_LIVES: tuple[tuple[Life, re.Pattern[str]], ...] = (
    (
        Life.FOREVER,
        re.compile(
            r"bell|generation|pulse|demand|gw|workers|leader|catalogue|status|explanations|canaries|cordons|absent"
            r"|wanted|want:.+"
        ),
    ),
    (Life.LIVE, re.compile(r"fileaccounts|fileends|batchwork")),
    (Life.LIVE, re.compile(r"m:.+:(ready:\d+|vt:\d+|since)|lease|t:.+|held:.+|hook")),
    (Life.LIVE, re.compile(r"m:.+:jobs|(spec|body|out|idem):.+|store|jobs:.+|due|ended")),
)
