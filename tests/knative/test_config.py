"""The section ``knative`` of the configuration."""

from __future__ import annotations

import pytest

from rewarm.config import parse
from rewarm.errors import ConfigInvalid

MODELS = """
models:
  chat: {engine: command, cmd: "server --port ${PORT}"}
  code: {engine: command, cmd: "server --port ${PORT}"}
"""


def test_a_file_without_the_section_can_be_rendered() -> None:
    assert parse(MODELS).knative.namespace == "rewarm"


def test_a_model_says_only_what_differs_for_it() -> None:
    text = "knative: {pod: {image: a, gpus: 1, cpu: 2}, models: {code: {gpus: 0}}}"
    knative = parse(MODELS + text).knative
    chat, code = knative.pod_of("chat"), knative.pod_of("code")
    assert (chat.image, chat.gpus, chat.cpu) == ("a", 1, 2)
    assert (code.image, code.gpus, code.cpu) == ("a", 0, 2)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{namespace: Team_A}", "lower-case letters"),
        ("{models: {speech: {gpus: 1}}}", "'speech' is no model"),
        ("{weights: {kind: pvc}}", "needs `claim`"),
        ("{weights: {kind: hostPath, path: models}}", "absolute path on the node"),
        ("{weights: {kind: emptyDir, claim: a}}", "`claim` belongs to pvc"),
        ("{weights_mount: models}", "absolute path"),
        ("{timeout: 60s, response_start: 90s}", "response_start is longer than timeout"),
        ("{pod: {env: {PORT: '1'}}}", "PORT is set by Knative"),
        ("{pod: {gpu: 1}}", "did you mean 'gpus'"),
    ],
)
def test_what_cannot_be_is_said_with_its_place(section: str, said: str) -> None:
    with pytest.raises(ConfigInvalid, match="knative") as caught:
        parse(MODELS + f"knative: {section}")
    assert said in caught.value.message
