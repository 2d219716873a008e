"""`rewarm knative render`: the workers of a configuration as manifests."""

from __future__ import annotations

import pytest
import yaml

from rewarm.config import load
from rewarm.errors import CannotRender
from rewarm.knative import names
from rewarm.knative.render import read, render
from rewarm.knative.text import dump
from tests.knative.manifests import EXAMPLE, KEY, ONE_MODEL, PLAIN, deployment, service

GPU = "nvidia.com/gpu"


def text() -> str:
    return EXAMPLE.read_text(encoding="utf-8")


def test_each_replica_a_model_may_have_is_a_manifest() -> None:
    assert list(render(text())) == ["configmap.yaml", "model-chat-0.yaml", "model-code-0.yaml", "model-embed-0.yaml"]
    two = ONE_MODEL.replace("/chat}", "/chat, max_replicas: 2}")
    assert list(render(two)) == ["configmap.yaml", "model-chat-0.yaml", "model-chat-1.yaml"]


def test_a_remote_model_has_no_place() -> None:
    remote = ONE_MODEL.replace("models: {", "models: {cloud: {engine: remote, url: https://api.example.com/v1}, ")
    assert list(render(remote)) == ["configmap.yaml", "model-chat-0.yaml"]


def test_a_model_of_a_hub_needs_no_volume_of_weights() -> None:
    assert "model-chat-0.yaml" in render(ONE_MODEL.replace("/srv/models/chat", "hf:org/chat"))


def test_the_configuration_goes_along_as_it_was_written() -> None:
    """The same file serves `rewarm serve`: nothing of it is changed for the cluster."""
    made = render(text())["configmap.yaml"]
    assert made["data"][names.CONFIG_KEY] == text()
    assert yaml.safe_load(dump(made)) == made
    assert "  config.yaml: |\n    # Three models" in dump(made)  # to be read in the cluster as it is here


def test_the_same_file_always_gives_the_same_text() -> None:
    once, again = (
        ["".join(dump(d) for d in render(text(), b).values()) for b in ("knative", "deployment")] for _ in "12"
    )
    assert once == again


def test_a_place_is_a_service_of_at_most_one_pod_that_only_the_cluster_reaches() -> None:
    made = service()
    assert made["metadata"]["labels"]["networking.knative.dev/visibility"] == "cluster-local"
    notes = made["spec"]["template"]["metadata"]["annotations"]
    scale = {key.partition("/")[2]: value for key, value in notes.items() if key.startswith("autoscaling")}
    assert (scale["min-scale"], scale["max-scale"], scale["target-burst-capacity"]) == ("0", "1", "-1")


def test_what_the_worker_needs_to_know_is_in_its_environment() -> None:
    container = service(PLAIN + "secret_env: TEAM_SECRET\n")["spec"]["template"]["spec"]["containers"][0]
    env = {variable["name"]: variable for variable in container["env"]}
    assert env[names.ENV_PLACE]["value"] == "model-chat-0"
    for variable, key in (
        (names.ENV_REDIS_URL, names.SECRET_REDIS_KEY),
        ("TEAM_SECRET", names.SECRET_FLEET_KEY),
    ):
        assert env[variable]["valueFrom"]["secretKeyRef"] == {"name": names.SECRET, "key": key}
    assert container["args"] == ["worker", names.CONFIG_PATH]


def test_a_worker_may_do_nothing_that_it_need_not() -> None:
    for made in (service(), deployment()):
        pod = made["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        context = pod["containers"][0]["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}


def test_what_is_written_to_is_a_volume() -> None:
    """The root file system is read-only: state, snapshots and temporary files lie elsewhere."""
    pod = service(PLAIN + "snapshots: {dir: /srv/snapshots}\nstate_dir: /srv/state\n")["spec"]["template"]["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts == {"snapshots": "/srv/snapshots", "state": "/srv/state", "config": "/srv/rewarm", "tmp": "/tmp"}
    assert pod["volumes"][0] == {"name": "snapshots", "emptyDir": {}}  # overlays replace it by its place


@pytest.mark.parametrize(
    ("volume", "source"),
    [
        ("{kind: emptyDir, size: 40GiB}", {"emptyDir": {"sizeLimit": "40Gi"}}),
        ("{kind: pvc, claim: nvme}", {"persistentVolumeClaim": {"claimName": "nvme"}}),
        (
            "{kind: pvc, claim: nvme, read_only: true}",
            {"persistentVolumeClaim": {"claimName": "nvme", "readOnly": True}},
        ),
        ("{kind: hostPath, path: /nvme}", {"hostPath": {"path": "/nvme", "type": "DirectoryOrCreate"}}),
    ],
)
def test_where_snapshots_lie(volume: str, source: dict[str, object]) -> None:
    made = service(ONE_MODEL + f"knative: {{weights: {{kind: none}}, snapshots: {volume}}}\n")
    assert made["spec"]["template"]["spec"]["volumes"][0] == {"name": "snapshots", **source}


def test_a_fresh_claim_belongs_to_root_so_that_the_pods_group_must_be_set() -> None:
    made = service(ONE_MODEL + "knative: {weights: {kind: none}, snapshots: {kind: pvc, claim: nvme}}\n")
    assert made["spec"]["template"]["spec"]["securityContext"] == {"fsGroup": 10001}


def test_gpus_go_to_vllm_unless_somebody_says_otherwise() -> None:
    pods = {name: made["spec"]["template"]["spec"] for name, made in render(text()).items() if "model" in name}
    limits = {name: pod["containers"][0]["resources"].get("limits", {}) for name, pod in pods.items()}
    assert limits["model-chat-0.yaml"] == {GPU: "1"}
    assert limits["model-embed-0.yaml"] == {"memory": "2Gi"}  # its own memory, and the agent's
    two = service(ONE_MODEL + "knative: {weights: {kind: none}, pod: {gpus: 2, shared_memory: 8GiB}}\n")
    pod = two["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {GPU: "2"}
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}} in pod["volumes"]


def test_a_deployment_has_its_own_grace_and_a_hook_that_drains() -> None:
    made = deployment(PLAIN.replace("/chat}", "/chat, drain_deadline: 20m}"))
    pod = made["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 1210
    assert pod["containers"][0]["lifecycle"]["preStop"]["httpGet"]["path"] == names.DRAIN_PATH
    assert made["spec"]["strategy"] == {"type": "Recreate"}
    assert "replicas" not in made["spec"]  # the controller's: applying again must not end a pod


def test_paths_mean_in_a_pod_what_the_file_says_there() -> None:
    """Relative ones begin where the configuration is mounted, whatever the folder here."""
    config = read(ONE_MODEL.replace("/srv/models/chat", "../models/chat"))
    assert str(config.local_models["chat"].source) == "/srv/rewarm/../models/chat"
    assert render(ONE_MODEL.replace("/srv/models/chat", "../models/chat"))
    assert str(load(EXAMPLE).local_models["chat"].source) == "/srv/models/Qwen3-8B"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: {chat: {engine: vllm, source: /srv/models/chat}}", "keys: in a cluster the gateway listens on every"),
        (KEY, "models: none runs on a worker"),
        (ONE_MODEL + "state_dir: state", "state_dir: /srv/rewarm/state would lie in the mounted configuration"),
        (ONE_MODEL + "snapshots: {dir: kept}", "snapshots.dir: /srv/rewarm/kept would lie in the mounted"),
        (ONE_MODEL.replace("/srv/models/", "/data/"), "models.chat.source: in a pod this is /data/chat, which is not"),
        (ONE_MODEL + "knative: {weights_mount: /srv/rewarm}", "knative.weights_mount: /srv/rewarm is where the"),
    ],
)
def test_what_makes_no_sense_on_a_cluster_is_said_with_its_field(text: str, said: str) -> None:
    with pytest.raises(CannotRender) as caught:
        render(text)
    assert said in caught.value.message
