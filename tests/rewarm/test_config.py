"""A configuration is parsed once, and every mistake in it is named with its line and field."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from rewarm.config import VllmModel, catalogue, load, parse
from rewarm.errors import ConfigInvalid, ConfigNotFound

SMALL = """
fleet: home
models:
  smollm2:
    engine: vllm
    source: models/smollm2
    aliases: [gpt-4o-mini]
    idle_after: 5m
    memory: 1.5GiB
  other:
    engine: command
    cmd: server --port ${PORT} --name "a b"
keys:
  - name: team-a
    sha256: "{hash}"
    models: [smollm2]
""".replace("{hash}", "0" * 64)


def test_durations_and_sizes_are_typed() -> None:
    model = parse(SMALL).models["smollm2"]
    assert isinstance(model, VllmModel)
    assert model.idle_after == timedelta(minutes=5)
    assert model.memory == 3 * 2**29


def test_relative_paths_start_at_the_file_s_folder(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(SMALL)
    model = load(file).models["smollm2"]
    assert isinstance(model, VllmModel) and model.source == tmp_path / "models/smollm2"


def test_a_command_is_split_as_a_shell_would() -> None:
    assert parse(SMALL).models["other"].cmd == ("server", "--port", "${PORT}", "--name", "a b")  # type: ignore[union-attr]


def test_the_configuration_is_frozen() -> None:
    config = parse(SMALL)
    with pytest.raises(ValueError, match="frozen"):
        config.fleet = "other"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "models:\n  a:\n    engine: vllm\n    sorce: x",
            "c.yaml:4: models.a.sorce: unknown field; did you mean 'source'?",
        ),
        ("models:\n  a:\n    engine: vllm", "models.a.source: is required"),
        ("models:\n  a:\n    engine: vlm\n    source: x", "unknown engine 'vlm': vllm, torch, command or remote"),
        (
            "models:\n  a: {engine: torch, source: x, args: [--fast]}",
            "models.a.args: the torch engine takes no arguments",
        ),
        ("models:\n  a: {engine: torch, source: x, batch_windw: 1s}", "did you mean 'batch_window'?"),
        ("models:\n  a:\n    source: x", "`engine` is required: vllm, torch, command or remote"),
        ("gatway: {}", "c.yaml:1: gatway: unknown field; did you mean 'gateway'?"),
        ("gateway:\n  listen: 8080", "c.yaml:2: gateway.listen:"),
        ("gateway:\n  listen: localhost", "write host:port"),
        ("redis:\n  url: localhost:6379", "c.yaml:2: redis.url: write redis://host:6379/0"),
        ("models:\n  a: {engine: vllm, source: x, idle_after: soon}", "'soon' is no duration"),
        ("models:\n  a: {engine: vllm, source: x, memory: big}", "'big' is no size"),
        (
            "models:\n  a: {engine: vllm, source: x, slots: 0}",
            "models.a.slots: Input should be greater than or equal to 1",
        ),
        ("models:\n  a: {engine: vllm, source: x, min_replicas: 2}", "min_replicas 2 is above max_replicas 1"),
        ("models:\n  a: {engine: vllm, source: x, min_asleep: 2}", "min_asleep 2 is above max_replicas 1"),
        ("models:\n  a: {engine: torch, source: x, min_asleep: 1}", "min_asleep: only a vllm engine can sleep"),
        (
            "models:\n  a: {engine: command, cmd: 'c ${PORT}', min_asleep: 1}",
            "min_replicas keeps this one loaded, awake",
        ),
        ("models:\n  a: {engine: remote, url: 'https://x/v1', min_asleep: 1}", "models.a.min_asleep: unknown field"),
        ("models:\n  a: {engine: vllm, source: x, min_asleep: 1, pinned: true}", "a pinned model does not sleep"),
        (
            "models:\n  a: {engine: vllm, source: x, min_asleep: 1, snapshot: off}",
            "with snapshot: off no snapshot is made",
        ),
        ("models:\n  a: {engine: command, cmd: server}", "must take its port from ${PORT}"),
        (
            "models:\n  a: {engine: vllm, source: x, aliases: [b]}\n  b: {engine: vllm, source: y}",
            "the name 'b' is taken",
        ),
        (
            "models:\n  a: {engine: vllm, source: x,\n    fallback: [b]}",
            "c.yaml:3: models.a.fallback: 'b' is no model",
        ),
        (
            "models:\n  a: {engine: vllm, source: x, fallback: [b]}\n  b: {engine: vllm, source: y, fallback: [a]}",
            "c.yaml:2: models.a.fallback: goes in a circle: a -> b -> a",
        ),
        (
            "models:\n  a: {engine: vllm, source: x, aliases: [other], fallback: [other]}",
            "models.a.fallback: 'other' is the model itself",
        ),
        ("models:\n  a: {engine: remote, url: api.example.com}", "models.a.url: write https://host/v1"),
        ("models:\n  a: {engine: remote, url: 'https://me:pw@x/v1'}", "the key does not belong into the URL"),
        ("models:\n  a: {engine: remote, url: 'https://x:port/v1'}", "has no usable port"),
        ("models:\n  a: {engine: remote, url: 'https://x/v1', key_env: sk-123}", "must be the name of an environment"),
        ("models:\n  a: {engine: remote, url: 'https://x/v1', slots: 3}", "models.a.slots: unknown field"),
        ("models:\n  a: {engine: vllm, source: x, capabilities: [sight]}", "models.a.capabilities.0: Input should be"),
        ("keys:\n  - {name: a, sha256: abc}", "c.yaml:2: keys.0.sha256: 64 lower-case hex digits"),
        ("fleet: a b", "fleet: letters, digits, _ and - only"),
        ("a: 1\na: 2", "c.yaml:2: not valid YAML: 'a' is given twice"),
        ("models: [", "not valid YAML"),
        ("- a", "must be a mapping"),
    ],
)
def test_every_mistake_is_named(text: str, says: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        parse(text, Path("c.yaml"))
    assert says in caught.value.message


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        parse("gatway: {}\nmodels:\n  a: {engine: vllm}\nredis: {url: x}", Path("c.yaml"))
    assert len(caught.value.message.splitlines()) == 3


def test_a_missing_file_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigNotFound, match=r"nothing\.yaml"):
        load(tmp_path / "nothing.yaml")


def test_an_empty_file_is_a_fleet_without_models() -> None:
    assert parse("").models == {}


def test_a_policy_change_leaves_the_specification_alone() -> None:
    before = catalogue(parse(SMALL))["smollm2"]
    after = catalogue(parse(SMALL.replace("idle_after: 5m", "idle_after: 9m")))["smollm2"]
    assert before.spec_hash == after.spec_hash
    assert before.policy != after.policy


def test_a_change_of_slots_is_another_specification() -> None:
    before = catalogue(parse(SMALL))["smollm2"]
    after = catalogue(parse(SMALL.replace("idle_after: 5m", "slots: 8")))["smollm2"]
    assert before.spec_hash != after.spec_hash


def test_a_torch_model_says_how_it_batches() -> None:
    text = "models:\n  small: {engine: torch, source: x, batch_window: 25ms, threads: 2, context_length: 512}"
    spec = catalogue(parse(text))["small"].spec
    assert (spec.engine, spec.batch_window_s, spec.threads, spec.context_length) == ("torch", 0.025, 2, 512)
    assert (spec.dtype, spec.snapshot) == ("auto", "auto")


def test_on_and_off_are_words_where_a_word_is_asked_and_yes_or_no_where_that_is() -> None:
    config = parse("pool: {enabled: off}\ngateway: {controller: off}\nworker: {load_guard: on, cgroups: off}\n")
    assert (config.pool.enabled, config.gateway.controller) == ("off", False)
    assert (config.worker.load_guard, config.worker.cgroups) == ("on", "off")
    assert parse("gateway: {controller: true}\n").gateway.controller is True
