"""What a pod's environment says beside the configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rewarm.cli import environment
from rewarm.config import Config, ConfigFile, parse
from rewarm.errors import ClusterUnavailable, ConfigInvalid
from rewarm.knative import names

FILE = """
models:
  chat: {engine: command, cmd: "serve ${PORT}", max_replicas: 2}
  other: {engine: command, cmd: "serve ${PORT}"}
keys: [{name: team, sha256: "%s"}]
""" % ("0" * 64)


def config(text: str = FILE) -> Config:
    return parse(text, Path("config.yaml"))


def test_the_worker_of_a_place_has_its_name_its_address_and_its_one_model() -> None:
    got, only = environment.at_place(config(), "model-chat-1", "redis://r:6379", "10.1.2.3")
    assert (got.worker.name, got.worker.advertise, only) == ("model-chat-1", "10.1.2.3", "chat")
    assert list(got.models) == ["chat"]
    assert got.redis.url == "redis://r:6379"


def test_a_place_that_the_file_does_not_have_is_an_error_that_names_those_it_has() -> None:
    with pytest.raises(ConfigInvalid, match="only model-chat-0, model-chat-1, model-other-0"):
        environment.at_place(config(), "model-chat-7", "redis://r", "10.1.2.3")


def test_the_gateway_listens_where_its_manifest_says_under_the_same_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.at_listen(config()) == config()
    monkeypatch.setenv(names.ENV_LISTEN, "0.0.0.0:8080")
    assert environment.at_listen(config()).gateway.listen == "0.0.0.0:8080"
    without_keys = config("models: {}")
    with pytest.raises(ConfigInvalid, match="add a key"):
        environment.at_listen(without_keys)
    monkeypatch.setenv(names.ENV_LISTEN, "8080")
    with pytest.raises(ConfigInvalid, match="REWARM_LISTEN=8080"):
        environment.at_listen(config())


def test_a_file_that_changes_does_not_change_what_the_manifest_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(names.ENV_LISTEN, "0.0.0.0:8080")
    path = tmp_path / "config.yaml"
    path.write_text(FILE)
    file = ConfigFile(path, environment.at_listen(config()), adjust=environment.at_listen)
    path.write_text(FILE.replace("max_replicas: 2", "max_replicas: 3"))
    assert file.reread()
    assert file.current.models["chat"].max_replicas == 3  # type: ignore[union-attr]
    assert (file.current.gateway.listen, file.state.restart) == ("0.0.0.0:8080", ())


def test_the_backend_is_one_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.backend_name() == "local"
    monkeypatch.setenv(names.ENV_BACKEND, "deployment")
    assert environment.backend_name() == "deployment"
    monkeypatch.setenv(names.ENV_BACKEND, "nomad")
    with pytest.raises(ConfigInvalid, match="local, knative, deployment"):
        environment.backend_name()


def test_a_cluster_that_is_not_configured_is_said_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import controller

    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ClusterUnavailable, match="no cluster is configured"):
        controller.backend("knative", config().knative)
    assert isinstance(controller.backend("local", config().knative), controller.LocalAgents)
