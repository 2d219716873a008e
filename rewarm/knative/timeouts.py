"""Times that must fit each other: those of a manifest, of the cluster's operator and of the configuration.

Each rule is about one pair. The figures of Knative are measured ones: SIGTERM reaches the worker 30 s after the pod's
end began, the grace period is timeoutSeconds, and both limits of a request run from its arrival at the activator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from rewarm.config import Config
from rewarm.knative.annotations import AUTOSCALING, canonical
from rewarm.knative.finding import Problem
from rewarm.knative.manifest import Manifest, join
from rewarm.knative.names import COMPONENT_GATEWAY, COMPONENT_WORKER
from rewarm.knative.operator import TIMEOUT_S, Operator
from rewarm.knative.quantity import go_duration_s, whole

LATE_SIGTERM_S = 30
"""queue-proxy waits so long without requests before it lets SIGTERM through, even while streams run."""

STOP_MARGIN_S = 10
"""For engines to stop and files to be closed after the last answer."""

LEAST_TIMEOUT_S = LATE_SIGTERM_S + 30
"""Below 30 s a worker never sees SIGTERM; this leaves it half a minute."""

LEAST_START_S = 60
"""A pod on a node that has its image: 1.3 s of Knative, seconds of Kubernetes and Python. Pulling takes minutes."""

LEADER_TTL_S = 5
"""How long nobody may lead after a leader died (``fleet/leader.py``)."""

LEAST_WINDOW_S = 3 * LEADER_TTL_S
"""The next leader must find the pods that the last one held: TTL, election, one round, the wake-up's way."""

DEFAULT_WINDOW_S = 60
DEFAULT_PROGRESS_S = 600
DEFAULT_GRACE_S = 30


@dataclass(frozen=True, slots=True)
class _Times:
    """Of one Knative object, in seconds, with Knative's defaults for what is not there."""

    total: int
    response_start: int
    idle: int
    window: float
    kept_after: float
    progress: float


def timeout_problems(manifest: Manifest, operator: Operator, config: Config | None) -> Iterator[Problem]:
    """Of a gateway or a worker. Without ``config`` only what the manifest itself contradicts."""
    if manifest.is_knative and manifest.component == COMPONENT_WORKER:
        yield from _knative_worker(manifest, _times(manifest, operator), config)
    elif manifest.is_knative and manifest.component == COMPONENT_GATEWAY:
        yield from _knative_gateway(manifest, _times(manifest, operator), config)
    elif manifest.is_deployment and manifest.component and config is not None:
        yield from _deployment(manifest, config)


def config_problems(config: Config) -> Iterator[Problem]:
    """Of the configuration alone."""
    budget, model = load_budget(config)
    patience = config.gateway.holding.patience
    if model and budget > patience:
        what = f"gateway.holding.patience is {_s(patience)}"
        why = f"a load of {model} may stand still for {_s(budget)} before it is called failed: who waits leaves first"
        change = f"Raise patience to {_s(budget)}, or lower the model's …_stall times"
        yield Problem("patience-load", "gateway.holding.patience", what, why, change, "warning")

    stall = config.knative.pod_stall
    if stall > patience:
        what = f"knative.pod_stall is {_s(stall)}, and gateway.holding.patience {_s(patience)}"
        why = "a pod of which nothing new is heard is called failed after that, and who waits leaves first"
        change = f"Lower pod_stall to {_s(patience)}, or raise patience"
        yield Problem("patience-pod", "knative.pod_stall", what, why, change, "warning")


def load_budget(config: Config) -> tuple[timedelta, str]:
    """The longest that a load which never moves can last, over all its phases, and of which model."""
    budgets = [
        (
            m.starting_stall + m.restoring_stall + m.initialising_stall + m.warming_stall + m.verifying_stall,
            name,
        )
        for name, m in config.local_models.items()
    ]
    return max(budgets, default=(timedelta(0), ""))


def _times(manifest: Manifest, operator: Operator) -> _Times:
    pod, notes = manifest.pod(), canonical(manifest.annotations())
    total = _whole(pod.get("timeoutSeconds"), operator.default_timeout_s)
    return _Times(
        total=total,
        response_start=_whole(pod.get("responseStartTimeoutSeconds"), min(total, TIMEOUT_S)),
        idle=_whole(pod.get("idleTimeoutSeconds"), 0),
        window=_duration(notes.get(f"{AUTOSCALING}window"), DEFAULT_WINDOW_S),
        kept_after=_duration(notes.get(f"{AUTOSCALING}scale-to-zero-pod-retention-period"), 0)
        + _duration(notes.get(f"{AUTOSCALING}scale-down-delay"), 0),
        progress=_duration(notes.get("serving.knative.dev/progress-deadline"), DEFAULT_PROGRESS_S),
    )


def _knative_worker(manifest: Manifest, t: _Times, config: Config | None) -> Iterator[Problem]:
    total_path = manifest.path("spec", "timeoutSeconds")
    notes_path = manifest.path("metadata", "annotations")
    if t.total < LEAST_TIMEOUT_S:
        why = f"it is the grace period too, and SIGTERM comes {LATE_SIGTERM_S} s late: streams would be cut off"
        change = f"Write at least {LEAST_TIMEOUT_S} (`knative.timeout`)"
        yield Problem("timeout-sigterm", total_path, f"timeoutSeconds is {t.total}", why, change)
    if 0 < t.idle < t.total:
        path = manifest.path("spec", "idleTimeoutSeconds")
        why = "the wake-up request says nothing while it holds the pod, and would be ended"
        what = f"idleTimeoutSeconds is {t.idle}"
        yield Problem("idle-wake-up", path, what, why, f"Remove it, or write timeoutSeconds, {t.total}")
    if t.response_start < min(LEAST_START_S, t.total):
        path = manifest.path("spec", "responseStartTimeoutSeconds")
        why = "it runs from the arrival at the activator; after it Knative takes the new pod straight down again"
        change = f"Write at least {LEAST_START_S}, best timeoutSeconds (`knative.response_start`)"
        yield Problem("response-start-pod", path, f"responseStartTimeoutSeconds is {t.response_start}", why, change)
    progress_path = join(notes_path, "serving.knative.dev/progress-deadline")
    if t.progress < t.response_start:
        why = f"Knative gives the pod up while a wake-up still waits for it ({t.response_start} s)"
        change = f"Write at least {t.response_start}s (`knative.progress_deadline`)"
        yield Problem("progress-response-start", progress_path, f"progress-deadline is {t.progress:g} s", why, change)
    if t.window < LEAST_WINDOW_S:
        why = f"a change of leaders takes up to {LEADER_TTL_S} s and more, and the pod would be gone meanwhile"
        change = f"Write at least {LEAST_WINDOW_S}s (`knative.window`)"
        path = join(notes_path, f"{AUTOSCALING}window")
        yield Problem("window-leader", path, f"window is {t.window:g} s", why, change)
    if config is not None:
        yield from _drain(total_path, t.total, config)
        yield from _given_back(notes_path, t, config)


def _drain(path: str, total: int, config: Config) -> Iterator[Problem]:
    """What is left between SIGTERM and the pod's end must be enough for what still runs."""
    left = total - LATE_SIGTERM_S - STOP_MARGIN_S
    for field, needed in _drains(config):
        if needed.total_seconds() > left:
            enough = int(needed.total_seconds()) + LATE_SIGTERM_S + STOP_MARGIN_S
            what = f"timeoutSeconds is {total}, and {field} is {_s(needed)}"
            why = (
                f"the pod is killed {total} s after its end began; less {LATE_SIGTERM_S} s until SIGTERM and "
                f"{STOP_MARGIN_S} s to stop, requests have {max(left, 0)} s"
            )
            change = f"Raise timeoutSeconds to {enough} (`knative.timeout`), or lower {field} to {max(left, 0)}s"
            yield Problem("timeout-drain", path, what, why, change)


def _drains(config: Config) -> Iterator[tuple[str, timedelta]]:
    yield "worker.shutdown_deadline", config.worker.shutdown_deadline
    for name, model in config.local_models.items():
        yield f"models.{name}.drain_deadline", model.drain_deadline


def _given_back(path: str, t: _Times, config: Config) -> Iterator[Problem]:
    """How long a pod keeps its GPU after its model was let go, beside the patience of who waits for that GPU."""
    patience = config.gateway.holding.patience.total_seconds()
    kept = t.window + t.kept_after + LATE_SIGTERM_S
    if kept > patience:
        what = f"window, retention and delay are {t.window + t.kept_after:g} s together"
        why = f"a GPU comes free {kept:g} s after its model was let go, and who waits leaves after {patience:g} s"
        change = "Shorten window (`knative.window`), or raise gateway.holding.patience"
        where = join(path, f"{AUTOSCALING}window")
        yield Problem("window-patience", where, what, why, change, "warning")


def _knative_gateway(manifest: Manifest, t: _Times, config: Config | None) -> Iterator[Problem]:
    if config is None:
        return
    holding, path = config.gateway.holding, manifest.path("spec", "timeoutSeconds")
    # The last seconds of a wait must still leave room for an answer: as much as an answer may be silent.
    answer = max((m.answer_stall for m in config.local_models.values()), default=timedelta(0))
    longest = holding.max_patience + answer
    if t.total < longest.total_seconds():
        what = f"timeoutSeconds is {t.total}, and gateway.holding.max_patience is {_s(holding.max_patience)}"
        why = "every request goes through queue-proxy here, which cuts a held one off in silence"
        most = t.total - int(answer.total_seconds())
        change = f"Lower max_patience to {max(most, 0)}s, raise timeoutSeconds to {_n(longest)}, or use a Deployment"
        yield Problem("gateway-request", path, what, why, change)
    begins = max(holding.plain_status_after, holding.stream_status_after)
    if t.response_start <= begins.total_seconds():
        where = manifest.path("spec", "responseStartTimeoutSeconds")
        what = f"responseStartTimeoutSeconds is {t.response_start}"
        why = f"a held request is answered nothing for up to {_s(begins)} (gateway.holding.plain_status_after)"
        yield Problem("gateway-response-start", where, what, why, f"Write more than {_n(begins)}")
    if 0 < t.idle <= max(holding.pad_every, holding.comment_every).total_seconds():
        where = manifest.path("spec", "idleTimeoutSeconds")
        why = f"a held request is silent for up to {_s(max(holding.pad_every, holding.comment_every))}"
        yield Problem("gateway-idle", where, f"idleTimeoutSeconds is {t.idle}", why, "Remove it")
    deadline = config.gateway.shutdown_deadline
    needed = _n(deadline) + LATE_SIGTERM_S + STOP_MARGIN_S
    if t.total < needed:
        what = f"timeoutSeconds is {t.total}, and gateway.shutdown_deadline is {_s(deadline)}"
        why = f"it is the grace period too, and SIGTERM comes {LATE_SIGTERM_S} s late"
        change = f"Raise timeoutSeconds to {needed}, or lower shutdown_deadline to {t.total - needed + _n(deadline)}s"
        yield Problem("gateway-drain", path, what, why, change)


def _deployment(manifest: Manifest, config: Config) -> Iterator[Problem]:
    """A pod of a Deployment gets SIGTERM at once, after its preStop hook, and has its own grace period."""
    grace = _whole(manifest.pod().get("terminationGracePeriodSeconds"), DEFAULT_GRACE_S)
    gateway = manifest.component == COMPONENT_GATEWAY
    drains = [("gateway.shutdown_deadline", config.gateway.shutdown_deadline)] if gateway else list(_drains(config))
    for field, deadline in drains:
        needed = _n(deadline) + STOP_MARGIN_S
        if grace < needed:
            what = f"terminationGracePeriodSeconds is {grace}, and {field} is {_s(deadline)}"
            why = f"the pod is killed before its requests may finish, less {STOP_MARGIN_S} s to stop"
            change = f"Raise it to {needed}, or lower {field} to {max(grace - STOP_MARGIN_S, 0)}s"
            where = manifest.path("spec", "terminationGracePeriodSeconds")
            yield Problem("grace-drain", where, what, why, change)


def _whole(value: object, default: int) -> int:
    found = whole(value)
    return default if found is None else found


def _duration(text: str | None, default_s: float) -> float:
    found = None if text is None else go_duration_s(text)
    return default_s if found is None else found


def _n(value: timedelta) -> int:
    return int(value.total_seconds())


def _s(value: timedelta) -> str:
    return f"{value.total_seconds():g} s"
