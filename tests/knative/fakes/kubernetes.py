"""What Kubernetes does with a Deployment of one pod: makes it, ends it (preStop, SIGTERM, grace), replaces it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from rewarm.knative import names
from tests.knative.fakes.api import ApiServer
from tests.knative.fakes.pod import Plan, Pod, Start
from tests.knative.fakes.timings import Timings


@dataclass
class Kubernetes:
    api: ApiServer
    start: Start
    timings: Timings = field(default_factory=Timings)
    grace_s: float = 60.0
    plans: dict[str, Plan] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)  # by Deployment, while there is one
    all_pods: list[Pod] = field(default_factory=list)
    one_gpu: bool = False  # only one pod has room at a time

    def apply(self, place: str) -> None:
        """With one replica, as a manifest without ``replicas`` is made."""
        labels = {names.LABEL_APP: names.APP, names.LABEL_COMPONENT: names.COMPONENT_WORKER}
        self.plans[place] = Plan()
        self.api.put("deployments", place, {"metadata": {"labels": labels}, "spec": {"replicas": 1}, "status": {}})

    def delete_pod(self, place: str) -> Pod:
        pod = self.pods.pop(place)
        pod.delete()
        return pod

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Kubernetes]:
        task = asyncio.create_task(self._controllers())
        try:
            yield self
        finally:
            task.cancel()
            for pod in self.all_pods:
                await pod.kill()

    async def _controllers(self) -> None:
        while True:
            await asyncio.sleep(0.02)
            for place, thing in list(self.api.objects["deployments"].items()):
                wanted = thing["spec"]["replicas"]
                pod = self.pods.get(place)
                if wanted and pod is None:
                    self._create(place)
                elif not wanted and pod is not None:
                    self.pods.pop(place).delete()
            if self.one_gpu:
                self._schedule()

    def _create(self, place: str) -> None:
        plan = self.plans[place]
        if plan.quota:
            conditions = [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": plan.quota}]
            if self.api.objects["deployments"][place]["status"].get("conditions") != conditions:
                self.api.change("deployments", place, conditions=conditions)
            return
        owner = f"{place}-5b9c7d8f64"
        pod = Pod(self.api, place, self.start, self.timings, plan, {}, owner, self.grace_s, pre_stop=True)
        self.pods[place] = pod
        self.all_pods.append(pod)
        if self.one_gpu and any(not other.gone.is_set() for other in self.all_pods[:-1]):
            pod.plan = Plan(unschedulable="0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
        pod.create()

    def _schedule(self) -> None:
        """The oldest pod that waits gets the node once no other pod is on it."""
        there = [pod for pod in self.all_pods if not pod.gone.is_set()]
        on_it = [pod for pod in there if not pod.plan.unschedulable]
        if not on_it and (waiting := [pod for pod in there if pod.deleted_at is None]):
            waiting[0].plan.unschedulable = ""
