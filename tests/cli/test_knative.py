"""`rewarm knative render` and `check` as commands: files, exit codes, output for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from rewarm.cli.knative import FOUND_ERRORS
from rewarm.cli.main import main
from tests.knative.manifests import EXAMPLE, ONE_MODEL, PLAIN, TEMPLATE, changed, service


def rewarm(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["knative", *map(str, arguments)], input=stdin)


def test_render_then_check(tmp_path: Path) -> None:
    out = tmp_path / "workers"
    assert rewarm("render", EXAMPLE, "-o", out).exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "configmap.yaml",
        "kustomization.yaml",
        "model-chat-0.yaml",
        "model-code-0.yaml",
        "model-embed-0.yaml",
    ]
    done = rewarm("check", out)
    assert done.exit_code == 0
    assert "4 objects: 0 errors, 0 warnings" in done.output


def test_the_configuration_itself_can_be_checked() -> None:
    assert rewarm("check", EXAMPLE).exit_code == 0
    assert rewarm("check", EXAMPLE, "--backend", "deployment").output == "4 objects: 0 errors, 0 warnings, 0 notes\n"


def test_rendering_again_changes_nothing_and_removes_models_that_are_gone(tmp_path: Path) -> None:
    config, out = tmp_path / "config.yaml", tmp_path / "workers"
    config.write_text(ONE_MODEL.replace("/chat}", "/chat, max_replicas: 2}"))
    rewarm("render", config, "-o", out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    rewarm("render", config, "-o", out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before

    (out / "own.yaml").write_text("kind: Mine\n")
    config.write_text(ONE_MODEL)
    done = rewarm("render", config, "-o", out, "--json")
    assert json.loads(done.output)["removed"] == ["model-chat-1.yaml"]
    assert (out / "own.yaml").exists()


def test_without_a_folder_it_goes_to_standard_output_and_can_be_piped_on() -> None:
    rendered = rewarm("render", EXAMPLE).output
    assert [document["kind"] for document in yaml.safe_load_all(rendered)] == ["ConfigMap"] + ["Service"] * 3
    assert rewarm("check", "-", stdin=rendered).exit_code == 0


def test_what_is_wrong_is_said_with_file_object_path_and_change(tmp_path: Path) -> None:
    file = tmp_path / "chat.yaml"
    file.write_text(yaml.safe_dump(changed(service(), f"{TEMPLATE}.timeoutSeconds", 20)))
    done = rewarm("check", file)
    assert done.exit_code == FOUND_ERRORS
    assert f"{file}: Service/model-chat-0: error: spec.template.spec.timeoutSeconds" in done.output
    assert "Write at least 60 (`knative.timeout`). [timeout-sigterm]" in done.output

    told = json.loads(rewarm("check", file, "--json").output)
    assert told["ok"] is False
    finding = next(f for f in told["findings"] if f["rule"] == "timeout-sigterm")
    assert set(finding) == {"level", "rule", "file", "object", "path", "what", "why", "change"}


def test_the_clusters_flags_decide(tmp_path: Path) -> None:
    flags = tmp_path / "features.yaml"
    features = {"kubernetes.podspec-volumes-hostpath": "disabled"}
    flags.write_text(
        yaml.safe_dump(
            {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "config-features"}, "data": features}
        )
    )
    assert rewarm("check", EXAMPLE, "--flags", flags).exit_code == FOUND_ERRORS
    for name in ("volumes-hostpath", "nodeselector", "tolerations"):
        features[f"kubernetes.podspec-{name}"] = "enabled"
    flags.write_text(
        yaml.safe_dump(
            {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "config-features"}, "data": features}
        )
    )
    done = rewarm("check", EXAMPLE, "--flags", flags)
    assert (done.exit_code, done.output) == (0, "4 objects: 0 errors, 0 warnings, 0 notes\n")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "kind: [", "a.yaml:2: not valid YAML"),
        ("a.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n", "nothing to check"),
        ("a.yaml", "modles: {}\n", "a.yaml:1: modles: unknown field; did you mean 'models'?"),
        ("missing.yaml", None, "missing.yaml: No such file"),
        ("a.yaml", "- just\n- a list\n", "the file must be a mapping"),
    ],
)
def test_a_file_that_cannot_be_checked_is_named(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    done = rewarm("check", tmp_path / name)
    assert done.exit_code == 2
    assert said in done.output


def test_a_configuration_that_means_nothing_on_a_cluster_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("models: {chat: {engine: vllm, source: /srv/models/chat}}")
    done = rewarm("render", file, "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert "keys: in a cluster the gateway listens on every interface: add a key" in done.output
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    config = tmp_path / "config.yaml"
    config.write_text(PLAIN)
    done = rewarm("render", config, "-o", tmp_path / "taken" / "out")
    assert done.exit_code == 2
    assert "Not a directory" in done.output
