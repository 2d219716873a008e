"""Places, whatever a cluster does: pods that come, never come, are replaced, vanish; leaders that change."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from controller.events import Elected
from controller.places import needed
from controller.state import Memory
from rewarm.states import FailureReason, ReplicaState
from tests.controller.fleetview import World, entry

REASONS = (FailureReason.UNSCHEDULABLE, FailureReason.CRASH_LOOP, FailureReason.QUOTA)


class Cluster(RuleBasedStateMachine):
    @initialize(places=st.integers(1, 3))
    def begin(self, places: int) -> None:
        self.world = World.of(entry("m", max_replicas=places, idle_after_s=30, failure_memory_s=10), workers=0)
        self.places = [f"model-m-{number}" for number in range(places)]
        for name in self.places:
            self.world.add_place(name)
        self.term, self.boots = 1, 0

    def _place(self, pick: int) -> str:
        return self.places[pick % len(self.places)]

    @rule(tickets=st.integers(1, 30))
    def ask(self, tickets: int) -> None:
        self.world.ask(tickets=tickets)
        self.world.step()

    @rule()
    def served(self) -> None:
        self.world.answer_all()
        self.world.step()

    @rule(seconds=st.floats(0.1, 60))
    def wait(self, seconds: float) -> None:
        self.world.pass_s(seconds)

    @rule(pick=st.integers(0, 9), reason=st.sampled_from((None, *REASONS)), room=st.booleans(), still=st.floats(0, 900))
    def look(self, pick: int, reason: FailureReason | None, room: bool, still: float) -> None:
        """The cluster says something of a place; as a backend has it, only of one that is needed."""
        name = self._place(pick)
        if name in needed(self.world.view(), self.world.places):
            room = room and reason is None
            self.world.see(name, message="as it is", reason=reason, waits_for_room=room, unchanged_s=still)
        self.world.step()

    @rule(pick=st.integers(0, 9))
    def pod_comes(self, pick: int) -> None:
        name = self._place(pick)
        if name not in self.world.workers and name in needed(self.world.view(), self.world.places):
            self.boots += 1
            self.world.pod_comes(name, boot=f"pod-{self.boots}")
        self.world.step()

    @rule(pick=st.integers(0, 9), state=st.sampled_from((ReplicaState.STARTING, ReplicaState.READY)))
    def worker_moves(self, pick: int, state: ReplicaState) -> None:
        """Its worker takes what is meant for this run of it."""
        name = self._place(pick)
        beat = self.world.workers.get(name)
        for want in list(self.world.wants.get(name, {}).values()):
            if beat is not None and want.boot in ("", beat.boot) and want.not_boot != beat.boot:
                if want.state is ReplicaState.READY:
                    self.world.ready(want.replica) if state is ReplicaState.READY else self.world.report(
                        want.replica, state
                    )
                else:
                    self.world.report(want.replica, ReplicaState.STOPPED)
        self.world.step()

    @rule(pick=st.integers(0, 9), how=st.sampled_from(("deleted", "drains", "dies")))
    def pod_goes(self, pick: int, how: str) -> None:
        name = self._place(pick)
        beat = self.world.workers.get(name)
        if beat is None:
            return
        if how == "deleted":
            self.world.see(name, leaving=frozenset((beat.host,)))
        elif how == "drains":
            self.world.workers[name] = msgspec.structs.replace(beat, draining=True)
        else:
            self.world.lose_worker(name)
            self.world.see(name)
        self.world.step()

    @rule(pick=st.integers(0, 9))
    def a_pod_that_leaves_is_gone(self, pick: int) -> None:
        name = self._place(pick)
        beat = self.world.workers.get(name)
        if beat is not None and (beat.draining or beat.host in self.world.places[name].seen.leaving):
            self.world.lose_worker(name)
            self.world.see(name)
        self.world.step()

    @rule()
    def another_leads(self) -> None:
        self.term += 1
        self.world.memory = Memory()
        self.world.step(Elected(self.term))

    @invariant()
    def no_place_is_wanted_for_two(self) -> None:
        for name, wants in self.world.wants.items():
            ready = [want for want in wants.values() if want.state is ReplicaState.READY]
            assert len(ready) <= 1, f"{name}: {[want.replica for want in ready]}"

    @invariant()
    def what_is_wanted_stays_within_the_places(self) -> None:
        assert self.world.wants.keys() <= set(self.places)

    @invariant()
    def whoever_waits_is_waited_for_or_told(self) -> None:
        """Once the dust of the last event has settled: somebody loads or serves, or the failure is remembered."""
        for _ in range(3):
            self.world.step()
        if self.world.waiting.get("m") and self.world.now_ms >= self.world.memory.hold_until_ms:
            status = self.world.statuses.get("m")
            pending = self.world.memory.models.get("m")
            owed = pending is not None and pending.pending is not None
            assert self.world.wanted() or owed or (status and status.failed_until_ms > self.world.now_ms)


TestCluster = Cluster.TestCase
TestCluster.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
