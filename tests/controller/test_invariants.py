"""What holds after any sequence of events, found out by Hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controller.actions import FailWaiting, Start, Stop
from controller.events import Configured, Elected, Operator, RedisBack, RedisLost
from controller.state import Memory, StopReason
from rewarm.messages import CatalogueEntry
from rewarm.states import ENDED, LOAD_PHASES, FailureReason, ReplicaState
from tests.controller.fleetview import GIB, World, entry

MAX = 2
IDLE_S = 30.0


class Fleet(RuleBasedStateMachine):
    """Agents that report what they like, clients that come and go, operators, failovers, reloads, outages."""

    def __init__(self) -> None:
        super().__init__()
        self.term = 1
        self.version = 1
        self.world = World()
        self.away = False
        self.started_at: dict[str, int] = {}
        self.reloading_until = 0

    @initialize(workers=st.integers(0, 3), min_replicas=st.integers(0, 1), min_asleep=st.integers(0, MAX))
    def begin(self, workers: int, min_replicas: int, min_asleep: int) -> None:
        self.min_replicas = min_replicas
        self.min_asleep = min_asleep
        self.world = World.of(self._entry(), workers=workers)

    def _entry(self) -> CatalogueEntry:
        return entry(
            spec_hash=f"h{self.version}",
            memory=4 * GIB,
            max_replicas=MAX,
            min_replicas=self.min_replicas,
            min_asleep=self.min_asleep,
            idle_after_s=IDLE_S,
            load_attempts=2,
            retry_backoff_s=1,
            failure_memory_s=10,
        )

    # --- what happens ------------------------------------------------------------------------------------------------

    @rule(tickets=st.integers(1, 40), stay=st.booleans())
    def ask(self, tickets: int, stay: bool) -> None:
        self.world.ask(tickets=tickets)
        if not stay:
            self.world.answer_all()
        self._step()

    @rule()
    def served(self) -> None:
        self.world.answer_all()
        self._step()

    @rule(seconds=st.floats(0.1, 90))
    def wait(self, seconds: float) -> None:
        self.world.now_ms += int(seconds * 1000)
        self._step()

    @rule(pick=st.integers(0, 99), busy=st.integers(0, 4))
    def agent_moves(self, pick: int, busy: int) -> None:
        """An agent takes its replica one step towards what is wanted of it."""
        replica = self._pick(pick)
        if replica is None:
            return
        want = self.world.want_of(replica)
        report = self.world.reports[want.worker].get(replica)
        state = report.state if report is not None else ReplicaState.COLD
        if want.state is ReplicaState.STOPPED:
            if state is ReplicaState.READY:
                assert report is not None
                conditional = want.if_last_activity_ms
                if conditional is not None and (conditional != report.last_activity_ms or report.in_flight):
                    return
                self.world.report(replica, ReplicaState.DRAINING)
            else:
                self.world.report(replica, ReplicaState.STOPPED, in_flight=0)
        elif want.state is ReplicaState.ASLEEP:
            assert report is not None
            unused = want.if_last_activity_ms in (None, report.last_activity_ms) and not report.in_flight
            if state is ReplicaState.READY and unused and want.if_ready_at_ms == report.ready_at_ms:
                self.world.report(replica, ReplicaState.ASLEEP)
            elif state is ReplicaState.ASLEEP and busy:  # a request wakes it
                self.world.ready(replica, in_flight=busy, last_activity_ms=report.last_activity_ms)
            elif state not in (ReplicaState.READY, ReplicaState.ASLEEP):
                self.world.report(replica, ReplicaState.STOPPED, in_flight=0)
        elif state is ReplicaState.ASLEEP:
            self.world.ready(replica, in_flight=0)
        elif state is ReplicaState.READY or state is ReplicaState.DRAINING:
            self.world.ready(replica, in_flight=busy, ready_at_ms=1, can_sleep=self.version % 2 == 0)
        elif state in LOAD_PHASES and state is not LOAD_PHASES[-1]:
            self.world.report(replica, LOAD_PHASES[LOAD_PHASES.index(state) + 1])
        elif state is LOAD_PHASES[-1]:
            self.world.ready(replica)
        else:
            self.world.report(replica, LOAD_PHASES[0], in_flight=0)
        self._step()

    @rule(pick=st.integers(0, 99), reason=st.sampled_from(FailureReason))
    def replica_fails(self, pick: int, reason: FailureReason) -> None:
        replica = self._pick(pick)
        if replica is not None:
            self.world.fails(replica, reason)
            self._step()

    @rule(name=st.sampled_from(["w1", "w2", "w3"]))
    def worker_leaves(self, name: str) -> None:
        if name in self.world.workers:
            self.world.lose_worker(name)
        self._step()

    @rule(name=st.sampled_from(["w1", "w2", "w3"]), boot=st.integers(2, 9))
    def worker_comes(self, name: str, boot: int) -> None:
        self.world.add_worker(name, boot=f"{name}-boot-{boot}")
        self._step()

    @rule(kind=st.sampled_from(["wake", "sleep"]))
    def operator(self, kind: str) -> None:
        self._step(Operator(kind, "m"))

    @rule()
    def failover(self) -> None:
        self.term += 1
        self.world.memory = Memory()
        self._step(Elected(self.term))

    @rule()
    def reload(self) -> None:
        self.version += 1
        made = self._entry()
        self._step(Configured({"m": made}))

    @rule()
    def redis_away(self) -> None:
        self.away = True
        assert self.world.step(RedisLost()) == []

    @precondition(lambda self: self.away)
    @rule()
    def redis_back(self) -> None:
        self.away = False
        self._step(RedisBack())

    # --- what must hold ----------------------------------------------------------------------------------------------

    def _step(self, event: object = None) -> None:
        world = self.world
        if self.away and not isinstance(event, Elected | RedisBack):
            assert world.step() == [], "nothing is decided while Redis is away"
            return
        self.away = False
        before = {r.replica: r for reports in world.reports.values() for r in reports.values()}
        actions = world.step(event)  # type: ignore[arg-type]
        for action in actions:
            if isinstance(action, Stop) and action.want.reason == StopReason.IDLE:
                report = before[action.want.replica]
                assert report.state is ReplicaState.READY
                assert report.in_flight == report.reserved == 0, "stopped under somebody's feet"
                assert world.now_ms - report.last_activity_ms >= IDLE_S * 1000
                assert world.now_ms - world.demand.get("m", 0) >= IDLE_S * 1000
                assert action.want.if_last_activity_ms == report.last_activity_ms
        assert len({a.want.replica for a in actions if isinstance(a, Start)}) == len(
            [a for a in actions if isinstance(a, Start)]
        ), "an id was given twice"
        self._demand_is_answered(actions)
        settled = [a for a in world.step() if not isinstance(a, FailWaiting)]
        assert settled == [] or self._restless(settled), f"flapping: {settled} follows {actions} with nothing new"

    def _demand_is_answered(self, actions: Sequence[object]) -> None:
        """Waiting leads to a want, to a failure, or to a start that is owed and says what it waits for."""
        world = self.world
        if not world.waiting.get("m"):
            return
        holding = world.now_ms < world.memory.hold_until_ms
        wanted = [r for r in world.wanted() if holding or world.want_of(r).worker in world.workers]
        memory = world.memory.models.get("m")
        owed = memory.pending if memory is not None else None
        assert wanted or (owed is not None and owed.obstacle), "demand was left without an answer"

    def _restless(self, actions: Sequence[object]) -> bool:
        """A second look at the same fleet may finish what the first began, in one direction only."""
        self_contradiction = {type(a).__name__ for a in actions} >= {"Start", "Stop"}
        for _ in range(4):
            if not self.world.step():
                return not self_contradiction
        return False

    def _pick(self, pick: int) -> str | None:
        replicas = sorted(
            r for worker, wants in self.world.wants.items() if worker in self.world.workers for r in wants
        )
        alive = [
            r
            for r in replicas
            if (rep := self.world.reports[self.world.want_of(r).worker].get(r)) is None or rep.state not in ENDED
        ]
        return alive[pick % len(alive)] if alive else None

    @invariant()
    def no_more_than_allowed(self) -> None:
        wanted = self.world.wanted()
        old = {self.world.want_of(r).spec_hash for r in wanted} - {f"h{self.version}"}
        assert len(wanted) <= MAX + (1 if old else 0), "too many replicas are wanted"


Fleet.TestCase.settings = settings(stateful_step_count=30)
TestFleet = Fleet.TestCase
