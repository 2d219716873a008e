"""What is looked at as a whole: the configuration that goes along, objects that are there twice, a report's order."""

from __future__ import annotations

import pytest

from rewarm.knative.check import check, checked
from rewarm.knative.manifest import Manifest
from rewarm.knative.names import CONFIG_KEY
from rewarm.knative.operator import Operator
from rewarm.knative.render import render
from rewarm.knative.text import documents, dump, manifests
from tests.knative.manifests import PLAIN, TEMPLATE, changed, service


def rendered(text: str = PLAIN) -> list[Manifest]:
    return [Manifest(name, document) for name, document in render(text).items()]


def test_the_configuration_among_the_manifests_is_the_one_they_are_held_to() -> None:
    """Its drain deadline does not fit the Service's timeout: nobody has to name the file."""
    long = PLAIN.replace("/chat}", "/chat, drain_deadline: 20m}")
    (found,) = check(rendered(long), Operator())
    assert (found.rule, found.file) == ("timeout-drain", "model-chat-0.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("modles: {}", "1: modles: unknown field; did you mean 'models'?"),
        ("models: [", "not valid YAML"),
        (None, "gateways and workers read that key"),
    ],
)
def test_a_config_map_that_no_gateway_could_read_is_an_error(text: str | None, said: str) -> None:
    config_map, *workers = rendered()
    broken = Manifest("configmap.yaml", changed(config_map.document, f"data:{CONFIG_KEY}", text))
    (found,) = [f for f in check([broken, *workers], Operator()) if f.rule == "config"]
    assert (found.level, found.file, found.object) == ("error", "configmap.yaml", "ConfigMap/rewarm-config")
    assert said in found.why


def test_two_objects_of_one_name_are_an_error() -> None:
    again = Manifest("copy.yaml", service())
    (found,) = check([*rendered(), again], Operator())
    assert (found.rule, found.file) == ("twice", "copy.yaml")
    assert "model-chat-0.yaml" in found.why


def test_other_namespaces_may_have_the_same_names() -> None:
    other = Manifest("copy.yaml", changed(service(), "metadata.namespace", "other"))
    assert check([*rendered(), other], Operator()) == []


def test_what_is_not_ours_is_passed_over() -> None:
    theirs = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {"anything": 1}}
    found = [Manifest("a.yaml", theirs)]
    assert check(found, Operator()) == []
    assert checked(found) == 0
    assert checked(rendered()) == 2


def test_errors_stand_before_warnings_before_notes() -> None:
    wrong = changed(service(), f"{TEMPLATE}.nodeSelector", {"a": "b"})
    wrong = changed(wrong, f"{TEMPLATE}.timeoutSeconds", 900)
    patient = PLAIN + "gateway: {holding: {patience: 60s}}\n"
    config_map = rendered(patient)[0]
    levels = [f.level for f in check([config_map, Manifest("a.yaml", wrong)], Operator())]
    assert levels == sorted(levels, key=["error", "warning", "note"].index)
    assert set(levels) == {"error", "warning", "note"}


def test_a_list_is_its_objects() -> None:
    """As kubectl prints them."""
    printed = dump({"apiVersion": "v1", "kind": "List", "items": [service(), service()]})
    assert [m.title for m in manifests(documents(printed, "a.yaml"), "a.yaml")] == ["Service/model-chat-0"] * 2
