"""Places of a cluster: a replica is wanted before its worker is there, and the leader answers for it until then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.events import Configured, Elected, Operator
from controller.places import needed, with_places
from controller.state import Memory
from rewarm.messages import Progress, ReplicaReport
from rewarm.pending import Usual
from rewarm.states import FailureReason, ReplicaState
from tests.controller.fleetview import World, entry, kinds


def cluster(places: int = 1, **policy: Any) -> World:
    world = World.of(entry("m", max_replicas=places, **policy), workers=0)
    for number in range(places):
        world.add_place(f"model-m-{number}")
    return world


def pending(world: World, place: str = "model-m-0") -> ReplicaReport:
    (report,) = world.absent[place].replicas
    return report


def serving_pod(world: World) -> str:
    """A replica that is ready in the pod of the first place."""
    world.ask()
    world.step()
    (replica,) = world.wanted()
    world.pod_comes("model-m-0")
    world.ready(replica)
    world.answer_all()
    world.step()
    return replica


# --- to a pod --------------------------------------------------------------------------------------------------------


def test_demand_is_placed_where_no_pod_is_yet() -> None:
    world = cluster()
    world.ask()
    world.step()
    (want,) = world.wants["model-m-0"].values()
    assert (want.boot, want.state) == ("", ReplicaState.READY)
    assert needed(world.view(), world.places) == {"model-m-0"}


def test_until_the_pod_comes_the_leader_tells_how_far_it_is() -> None:
    world = cluster()
    world.ask()
    world.step()
    for message in ("asked for", "its pod waits for a node", "its worker starts"):
        world.see("model-m-0", message=message)
        world.pass_s(60)
        report = pending(world)
        assert report.state is ReplicaState.POD_PENDING
        assert report.progress == Progress(
            model="m", replica=report.replica, phase=ReplicaState.POD_PENDING, message=message
        )
    assert len(world.wanted()) == 1, "and nothing is started twice"


def test_what_earlier_pods_took_says_how_long_this_one_will() -> None:
    world = cluster()
    world.places["model-m-0"] = replace(world.places["model-m-0"], usual=Usual(pod_s=30.0, load_s=10.0))
    world.ask()
    world.step()
    began_ms = world.now_ms
    told = []
    for waited_s, at_s, fraction, eta_s in ((0, 0, 0.0, 40.0), (15.2, 15, 0.375, 25.0), (40, 39, 0.7125, 11.8)):
        world.now_ms = began_ms + round(waited_s * 1000)
        world.step()
        progress = pending(world).progress
        assert progress is not None
        assert (progress.fraction, progress.eta_s) == (fraction, eta_s)
        assert progress.at_ms == began_ms + at_s * 1000, "it is counted down from then"
        told.append(progress)
    world.now_ms += 400
    world.step()
    assert pending(world).progress == told[-1], "and not told again before there is something new"


def test_of_a_retry_only_the_attempt_itself_counts() -> None:
    world = cluster(load_attempts=2, retry_backoff_s=20)
    world.places["model-m-0"] = replace(world.places["model-m-0"], usual=Usual(pod_s=30.0, load_s=10.0))
    world.ask()
    world.step()
    world.see("model-m-0", message="slow", unchanged_s=600)
    world.step()
    (again,) = world.wanted()
    world.see("model-m-0")
    world.now_ms = world.want_of(again).not_before_ms
    world.step()
    progress = pending(world).progress
    assert progress is not None
    assert (progress.attempt, progress.eta_s) == (2, 40.0)


def test_the_pod_takes_what_is_wanted_and_keeps_it() -> None:
    world = cluster()
    world.ask()
    world.step()
    (replica,) = world.wanted()
    world.pod_comes("model-m-0", boot="pod-1")
    assert world.step() == [], "its worker has not looked yet"
    world.report(replica, ReplicaState.STARTING)
    assert kinds(world.step()) == ["Keep"]
    assert world.want_of(replica).boot == "pod-1"
    assert world.absent == {}
    assert world.step() == []


def test_a_place_serves_its_own_model_only_and_one_replica_of_it() -> None:
    world = World.of(entry("a"), entry("b"), workers=0)
    world.add_place("model-a-0", "a")
    world.ask("a")
    world.ask("b")
    world.step()
    assert [want.model for want in world.wants["model-a-0"].values()] == ["a"]
    world.ask("a", 100)
    world.pass_s(1)
    assert len(world.wanted("a")) == 1
    assert world.wanted("b") == []


def test_more_replicas_are_more_places() -> None:
    world = cluster(places=3)
    world.ask(tickets=24)
    world.step()
    assert sorted(world.wants) == ["model-m-0", "model-m-1", "model-m-2"]
    assert all(len(wants) == 1 for wants in world.wants.values())


def test_a_model_whose_need_is_known_is_placed_without_asking_for_memory_that_is_not_there_yet() -> None:
    world = World.of(entry("m", memory=2**40), workers=0)
    world.add_place("model-m-0")
    world.ask()
    world.step()
    assert len(world.wanted()) == 1


# --- no pod ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [FailureReason.UNSCHEDULABLE, FailureReason.CRASH_LOOP, FailureReason.QUOTA])
def test_what_the_cluster_cannot_do_fails_at_once_and_lets_the_place_go(reason: FailureReason) -> None:
    world = cluster(load_attempts=3)
    world.ask()
    world.step()
    world.see("model-m-0", message="no node takes its pod", reason=reason, unchanged_s=1)
    world.step()
    (failed,) = world.failed
    assert failed.failure is not None
    assert (failed.failure.reason, failed.failure.phase) == (reason, ReplicaState.POD_PENDING)
    assert "model-m-0: no node takes its pod" in failed.message
    world.step()
    assert needed(world.view(), world.places) == frozenset()
    assert world.statuses["m"].failed_until_ms > world.now_ms


def test_a_pod_without_a_node_has_a_moment_for_one_to_turn_up() -> None:
    world = cluster()
    world.ask()
    world.step()
    world.see("model-m-0", message="no node takes its pod", reason=FailureReason.UNSCHEDULABLE, unchanged_s=0.9)
    world.step()
    progress = pending(world).progress
    assert progress is not None
    assert (progress.message, world.failed) == ("no node takes its pod", [])


def test_where_the_autoscaler_has_said_no_nobody_waits_for_a_node() -> None:
    world = cluster()
    world.places["model-m-0"] = replace(world.places["model-m-0"], unschedulable_s=60.0)
    world.ask()
    world.step()
    world.see("model-m-0", message="no node", reason=FailureReason.UNSCHEDULABLE, unchanged_s=10)
    world.step()
    assert world.failed == []
    world.see("model-m-0", message="none is added", reason=FailureReason.UNSCHEDULABLE, certain=True, unchanged_s=0)
    world.step()
    (failed,) = world.failed
    assert "none is added" in failed.message


def test_after_the_failure_is_forgotten_the_next_request_tries_again() -> None:
    world = cluster(failure_memory_s=30)
    world.ask()
    world.step()
    world.see("model-m-0", message="no node", reason=FailureReason.UNSCHEDULABLE, unchanged_s=1)
    world.step()
    world.see("model-m-0")
    world.pass_s(31)
    world.ask()
    world.step()
    assert len(world.wanted()) == 1


def test_a_pod_of_which_nothing_more_is_heard_is_given_up() -> None:
    world = cluster(load_attempts=1)
    world.ask()
    world.step()
    world.see("model-m-0", message="its pod waits for a node", unchanged_s=599)
    assert world.step() == []
    world.see("model-m-0", message="its pod waits for a node", unchanged_s=600)
    world.step()
    (failed,) = world.failed
    assert failed.failure is not None
    assert failed.failure.reason is FailureReason.STALLED


def test_room_that_others_hold_is_waited_for() -> None:
    """However long: the others fall asleep the sooner for it."""
    world = cluster()
    world.ask()
    world.step()
    world.see("model-m-0", message="waits for room", waits_for_room=True, unchanged_s=3600)
    world.pass_s(3600)
    assert pending(world).waits_for_room
    assert world.failed == []


def test_another_model_makes_room_for_a_pod_that_waits() -> None:
    world = World.of(entry("a", idle_after_s=3600), entry("b"), workers=0)
    world.add_place("model-a-0", "a")
    world.add_place("model-b-0", "b")
    world.ask("a")
    world.step()
    (replica,) = world.wanted("a")
    world.pod_comes("model-a-0")
    world.ready(replica)
    world.answer_all("a")
    world.pass_s(15)  # its minimum residency is over
    world.ask("b")
    world.step()
    world.see("model-b-0", message="waits for room", waits_for_room=True)
    world.pass_s(1)
    assert world.stopping("a") == [replica]


# --- the end of a pod ------------------------------------------------------------------------------------------------


def test_an_idle_replica_stops_first_and_then_its_place_is_let_go() -> None:
    world = cluster(idle_after_s=30)
    replica = serving_pod(world)
    world.pass_s(31)
    assert world.stopping() == [replica]
    world.report(replica, ReplicaState.DRAINING)
    world.pass_s(60)
    assert needed(world.view(), world.places) == {"model-m-0"}, "the pod stays while a stream runs in it"
    world.report(replica, ReplicaState.STOPPED)
    world.step()
    assert needed(world.view(), world.places) == frozenset()


def test_a_stop_before_the_pod_has_come_ends_at_once() -> None:
    world = cluster()
    world.ask()
    world.step()
    world.answer_all()  # its client has left
    world.step(Operator("sleep", "m"))
    world.step()
    assert world.wants["model-m-0"] == {}


def test_a_pod_that_is_deleted_is_replaced_while_it_still_drains() -> None:
    """Knative tells the worker 30 s late; the leader sees it at once."""
    world = cluster()
    replica = serving_pod(world)
    world.see("model-m-0", leaving=frozenset(("pod-1",)))
    world.report(replica, ReplicaState.READY, in_flight=1)
    world.step()
    assert world.wanted() == [], "nobody asks"
    world.ask()
    world.step()
    (new,) = world.wanted()
    want = world.want_of(new)
    assert (new != replica, want.boot, want.not_boot) == (True, "", "pod-1")
    world.pod_comes("model-m-0", boot="pod-2")
    world.report(new, ReplicaState.STARTING)
    world.step()
    assert world.want_of(new).boot == "pod-2"


@pytest.mark.parametrize("goodbye", [True, False])
def test_a_pod_that_dies_while_it_loads_is_replaced_and_that_is_no_failure_of_the_model(goodbye: bool) -> None:
    world = cluster(load_attempts=1)
    world.ask()
    world.step()
    (replica,) = world.wanted()
    world.pod_comes("model-m-0")
    world.report(replica, ReplicaState.STARTING)
    world.step()
    if goodbye:
        world.worker_leaves("model-m-0")
    else:
        world.lose_worker("model-m-0")
    world.step()
    (again,) = world.wanted()
    assert again != replica
    assert world.failed == []
    assert world.want_of(again).boot == ""


def test_after_an_election_a_pod_that_has_not_spoken_yet_is_not_taken_for_gone() -> None:
    world = cluster()
    replica = serving_pod(world)
    world.lose_worker("model-m-0")
    world.memory = Memory()
    world.step(Elected(2))
    world.pass_s(1)
    assert world.wanted() == [replica]
    assert world.absent == {}, "the leader does not speak for it either"


def test_a_new_leader_goes_on_with_a_pod_that_still_comes() -> None:
    world = cluster()
    world.ask()
    world.step()
    (replica,) = world.wanted()
    world.memory = Memory()
    world.step(Elected(2))
    world.pass_s(10)
    assert world.wanted() == [replica]


def test_a_new_leader_lets_go_of_a_pod_that_nobody_asks_for_any_more() -> None:
    world = cluster()
    world.ask()
    world.step()
    world.answer_all()
    world.now_ms += 60_000
    world.memory = Memory()
    world.step(Elected(2))
    assert world.wants["model-m-0"] == {}


def test_the_leader_does_not_answer_for_a_run_that_is_over() -> None:
    world = cluster()
    serving_pod(world)
    world.lose_worker("model-m-0")
    _, absent = with_places(world.view(), world.places, holding=False)
    assert absent["model-m-0"].replicas == ()


def test_a_changed_specification_is_rolled_at_the_one_place() -> None:
    world = cluster()
    replica = serving_pod(world)
    world.step(Configured({"m": entry("m", spec_hash="h2")}))
    world.step()
    assert world.stopping() == [replica]
    world.report(replica, ReplicaState.STOPPED)
    world.step()
    (new,) = world.wanted()
    assert world.want_of(new).spec_hash == "h2"


def test_a_backoff_does_not_hold_the_place() -> None:
    world = cluster(load_attempts=2, retry_backoff_s=20)
    world.ask()
    world.step()
    (replica,) = world.wanted()
    world.see("model-m-0", message="slow", unchanged_s=600)
    world.step()
    (again,) = world.wanted()
    assert (again != replica, world.want_of(again).attempt) == (True, 2)
    assert needed(world.view(), world.places) == frozenset()
    assert world.step() == [], "what was seen of the first attempt says nothing of the second"
    progress = pending(world).progress
    assert progress is not None
    assert progress.message == "waits before the next attempt"
    world.now_ms += 40_000
    assert needed(world.view(), world.places) == {"model-m-0"}
