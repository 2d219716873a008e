"""What is known of a cluster stays true through all that an API server does to those who watch it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from controller.backends.cluster import AUTOSCALER, EVENT, POD, REVISION, SERVICE, Cluster
from controller.backends.deployments import Deployments
from controller.places import Place
from rewarm.config import KnativeConfig
from rewarm.knative.names import LABEL_PLACE, WORKER_SELECTOR
from tests.controller.fleetview import entry
from tests.e2e.stack import until
from tests.knative.fakes.api import ApiServer, Json

pytestmark = pytest.mark.asyncio

OURS = dict(part.split("=") for part in WORKER_SELECTOR.split(","))
PLACE = "model-m-0"


def pod(name: str, phase: str = "Pending") -> Json:
    labels = {**OURS, LABEL_PLACE: PLACE}
    return {"metadata": {"labels": labels}, "spec": {"nodeName": "n"}, "status": {"phase": phase}}


@asynccontextmanager
async def following(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[ApiServer, Cluster, Callable[[], set[str]]]]:
    """A cluster with one pod, seen; and the names of the pods that are known now."""
    async with ApiServer().listening() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(folder)))
        api.put("pods", "a", pod("a"))
        cluster = Cluster("rewarm", SERVICE, (POD, REVISION, AUTOSCALER, EVENT))
        task = asyncio.create_task(cluster.run())

        def known() -> set[str]:
            return {thing["metadata"]["name"] for thing in cluster.of(PLACE).pods}

        try:
            await until(lambda: known() == {"a"}, "the first list")
            yield api, cluster, known
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_changes_are_seen_as_they_happen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(tmp_path, monkeypatch) as (api, cluster, known):
        api.put("pods", "b", pod("b"))
        await until(lambda: known() == {"a", "b"}, "a new pod")
        api.change("pods", "b", phase="Running")
        await until(lambda: any(p["status"]["phase"] == "Running" for p in cluster.of(PLACE).pods), "its phase")
        api.delete("pods", "a")
        await until(lambda: known() == {"b"}, "it is gone")
        api.put("pods", "foreign", {"metadata": {"labels": {LABEL_PLACE: PLACE}}})
        api.put("pods", "c", pod("c"))
        await until(lambda: known() == {"b", "c"}, "ours only")


@pytest.mark.parametrize("torn", [False, True])
async def test_a_watch_that_drops_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    async with following(tmp_path, monkeypatch) as (api, _, known):
        for name in "bcd":
            api.drop_watches(torn=torn)
            api.put("pods", name, pod(name))
        await until(lambda: known() == {"a", "b", "c", "d"}, "nothing is missed")
        assert api.asked.count("GET pods") == 1, "without another list"


async def test_a_server_that_ends_every_watch_at_once_is_not_asked_in_a_circle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.backends.following.FIRST_BACKOFF_S", 0.05)
    async with following(tmp_path, monkeypatch) as (api, _, known):
        now = asyncio.get_running_loop().time
        watched, began_s = len(watches(api)), now()
        api.short_watches = True
        api.drop_watches()
        await until(lambda: len(watches(api)) >= watched + 4, "it asks on, ever more slowly")
        # The first may follow at once: the watch that was dropped may have lasted.
        assert now() - began_s >= (0.05 + 0.1 + 0.2) / 2, "jitter takes half of a pause at most"
        api.short_watches = False
        api.put("pods", "b", pod("b"))
        await until(lambda: known() == {"a", "b"}, "once they last again nothing was missed")
        assert api.asked.count("GET pods") == 1, "without another list"


def watches(api: ApiServer) -> list[str]:
    return [asked for asked in api.asked if asked.startswith("WATCH pods")]


async def test_after_a_version_too_old_what_went_meanwhile_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(tmp_path, monkeypatch) as (api, _, known):
        api.refuse["pods"] = 500
        api.drop_watches(torn=True)
        await until(lambda: not any(w.plural == "pods" for w in api._watchers), "nobody watches")
        api.delete("pods", "a")
        api.put("pods", "b", pod("b"))
        api.forget_history()
        del api.refuse["pods"]
        await until(lambda: known() == {"b"}, "listed anew")
        assert api.asked.count("GET pods") == 2


async def test_a_right_that_is_missing_is_said_and_works_once_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.backends.following.REFUSED_AGAIN_S", 0.2)
    async with following(tmp_path, monkeypatch) as (api, cluster, known):
        api.refuse["pods"] = 403
        api.drop_watches(torn=True)
        await until(lambda: "pods cannot be seen" in cluster.blind, "it is said")
        assert cluster.of(PLACE).target is None, "the rest is seen as before"
        api.put("pods", "b", pod("b"))
        del api.refuse["pods"]
        await until(lambda: known() == {"a", "b"}, "seen again")
        assert cluster.blind == ""


async def test_a_cluster_without_knative_is_no_cluster_without_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(tmp_path, monkeypatch) as (api, cluster, _):
        api.refuse["services"] = 404
        api.drop_watches(torn=True)
        await until(lambda: "services cannot be seen" in cluster.blind, "the kind is not known")
        assert cluster.of(PLACE).target == {}


async def test_a_busy_server_is_asked_again_when_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(tmp_path, monkeypatch) as (api, _, known):
        api.busy["pods"] = 1
        api.drop_watches(torn=True)
        api.put("pods", "b", pod("b"))
        await until(lambda: known() == {"a", "b"}, "after its second")
        assert api.busy["pods"] == 0


async def test_events_of_another_place_with_a_similar_name_are_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(tmp_path, monkeypatch) as (api, cluster, _):
        ours = ("model-m-0-00001-deployment-6f7d8c9b5", "model-m-0-5b9c7d8f64", "model-m-0", "a")
        foreign = ("model-m-0-0-5b9c7d8f64", "model-m-00-00001-deployment-6f7d8c9b5", "model-m-1")
        for number, name in enumerate((*ours, *foreign)):
            api.put("events", f"e{number}", {"involvedObject": {"name": name}, "reason": "FailedCreate"})
        await until(lambda: len(cluster.of(PLACE).events) >= len(ours), "the events")
        assert {e["involvedObject"]["name"] for e in cluster.of(PLACE).events} == set(ours)


# --- scales ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def scaling(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, trusted: Callable[[], bool] = lambda: True
) -> AsyncIterator[tuple[ApiServer, Deployments]]:
    async with ApiServer().listening() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(folder)))
        for name in (PLACE, "model-old-0"):
            api.put("deployments", name, {"metadata": {"labels": OURS}, "spec": {"replicas": 0}})
        backend = Deployments(KnativeConfig())
        backend.configure({"m": entry("m")})
        task = asyncio.create_task(backend.lead(lambda: None, trusted))
        try:
            yield api, backend
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def replicas(api: ApiServer, name: str = PLACE) -> int:
    return int(api.objects["deployments"][name]["spec"]["replicas"])


async def test_a_place_is_scaled_up_and_down_and_what_a_person_scaled_is_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scaling(tmp_path, monkeypatch) as (api, backend):
        api.put("deployments", "model-old-0", {"metadata": {"labels": OURS}, "spec": {"replicas": 1}})
        backend.need(frozenset((PLACE,)))
        await until(lambda: replicas(api) == 1, "up")
        await until(lambda: replicas(api, "model-old-0") == 0, "and that of a model that is no more, down")
        backend.need(frozenset())
        await until(lambda: replicas(api) == 0, "down")


async def test_before_a_leader_has_looked_nothing_is_scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scaling(tmp_path, monkeypatch) as (api, backend):
        api.put("deployments", PLACE, {"metadata": {"labels": OURS}, "spec": {"replicas": 1}})
        await until(lambda: backend.places[PLACE] == Place(PLACE, "m"), "it watches")
        await until(lambda: any(asked.startswith("WATCH deployments") for asked in api.asked), "it watches")
        assert not any(asked.startswith("PATCH") for asked in api.asked)
        assert replicas(api) == 1


async def test_a_leader_that_was_cut_off_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leads = False
    async with scaling(tmp_path, monkeypatch, trusted=lambda: leads) as (api, backend):
        backend.need(frozenset((PLACE,)))
        await until(lambda: any(asked.startswith("WATCH deployments") for asked in api.asked), "it watches")
        api.put("events", "e", {"involvedObject": {"name": PLACE}})
        assert not any(asked.startswith("PATCH") for asked in api.asked)
        leads = True
        api.put("events", "e", {"involvedObject": {"name": PLACE}, "count": 2})
        await until(lambda: replicas(api) == 1, "once it leads again")


@pytest.mark.parametrize("trouble", ["conflict", "busy"])
async def test_a_refused_patch_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    async with scaling(tmp_path, monkeypatch) as (api, backend):
        if trouble == "conflict":
            api.conflicts = 2
        else:
            api.busy["deployments/scale"] = 1
        backend.need(frozenset((PLACE,)))
        await until(lambda: replicas(api) == 1, "in the end")


async def test_a_right_to_scale_that_is_missing_is_told_to_whoever_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scaling(tmp_path, monkeypatch) as (api, backend):
        api.refuse["deployments/scale"] = 403
        backend.need(frozenset((PLACE,)))
        await until(lambda: "cannot be scaled to 1" in backend.places[PLACE].seen.message, "the message")
        assert "forbidden" in backend.places[PLACE].seen.message
