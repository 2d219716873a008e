"""``adapter_of``: an adapter is a model by name, and its base's engine serves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rewarm.config import AdapterModel, catalogue, load, parse
from rewarm.errors import ConfigInvalid
from rewarm.messages import AdapterSpec

TWO = """
models:
  base: {engine: vllm, source: /m/base, slots: 3, priority: high, pinned: true, aliases: [gpt], answer_stall: 9s}
  tuned: {adapter_of: base, source: /m/tuned, aliases: [tuned-latest], fallback: [base], max_waiting: 7}
  polite: {adapter_of: base, source: /m/polite, answer_stall: 5s, capabilities: [chat]}
keys:
  - {name: a, sha256: "%s", models: [tuned-latest]}
""" % ("0" * 64)


def test_the_base_has_the_engine_and_knows_its_adapters() -> None:
    base = catalogue(parse(TWO))["base"]
    assert base.placed and base.home == "base"
    assert base.spec.adapters == (
        AdapterSpec(name="polite", source="/m/polite"),
        AdapterSpec(name="tuned", source="/m/tuned"),
    )
    assert base.spec.served_names == ("base", "gpt"), "an adapter's names are not the base's"


def test_an_adapter_is_a_model_of_its_own_without_replicas() -> None:
    tuned = catalogue(parse(TWO))["tuned"]
    assert not tuned.placed and tuned.home == tuned.base == "base"
    assert tuned.spec.served_names == ("tuned", "tuned-latest")
    assert (tuned.policy.fallback, tuned.policy.max_waiting) == (("base",), 7)
    assert (tuned.policy.min_replicas, tuned.policy.canary_every_s) == (0, None)


def test_what_it_does_not_say_is_as_its_base_has_it() -> None:
    entries = catalogue(parse(TWO))
    assert (entries["tuned"].spec.slots, entries["tuned"].spec.engine) == (3, "vllm")
    assert (entries["tuned"].policy.priority, entries["tuned"].policy.pinned) == (0, True)
    assert (entries["tuned"].spec.answer_stall_s, entries["polite"].spec.answer_stall_s) == (9.0, 5.0)
    assert entries["polite"].capabilities.can == ("chat",)


def test_only_what_the_engine_has_to_know_of_an_adapter_makes_a_new_replica_of_its_base() -> None:
    def hashed(text: str) -> str:
        return catalogue(parse(text))["base"].spec_hash

    assert hashed(TWO.replace("max_waiting: 7", "max_waiting: 8")) == hashed(TWO)
    assert hashed(TWO.replace("tuned-latest", "tuned-new")) == hashed(TWO)
    assert hashed(TWO.replace("/m/tuned", "/m/tuned-2")) != hashed(TWO)
    assert hashed(TWO.replace("polite:", "kind:")) != hashed(TWO)


def test_its_folder_is_found_from_the_file_s_own(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(TWO.replace("/m/tuned", "loras/tuned"))
    tuned = load(tmp_path / "c.yaml").models["tuned"]
    assert isinstance(tuned, AdapterModel) and tuned.source == tmp_path / "loras/tuned"


@pytest.mark.parametrize(
    ("models", "says"),
    [
        ("a: {adapter_of: b, source: x}", "c.yaml:2: models.a.adapter_of: 'b' is no model"),
        (
            "b: {engine: vllm, source: x, aliases: [c]}\n  a: {adapter_of: c, source: x}",
            "c.yaml:3: models.a.adapter_of: 'c' is no model: it is an alias, write 'b'",
        ),
        (
            "b: {engine: vllm, source: x}\n  a: {adapter_of: b, source: x}\n  c: {adapter_of: a, source: x}",
            "c.yaml:4: models.c.adapter_of: 'a' is an adapter itself: name its base, 'b'",
        ),
        ("b: {engine: torch, source: x}\n  a: {adapter_of: b, source: x}", "the torch engine serves no adapters"),
        ("b: {engine: command, cmd: 'x ${PORT}'}\n  a: {adapter_of: b, source: x}", "give the adapter to the server"),
        ("b: {engine: remote, url: 'https://x/v1'}\n  a: {adapter_of: b, source: x}", "it runs elsewhere"),
        ("b: {engine: vllm, source: x}\n  a: {adapter_of: b}", "models.a.source: is required"),
        (
            "b: {engine: vllm, source: x}\n  a: {adapter_of: b, source: 'hf:org/a'}",
            "models.a.source: adapters are not fetched from a hub",
        ),
        (
            "b: {engine: vllm, source: x}\n  a: {adapter_of: b, source: x, slots: 2}",
            "c.yaml:3: models.a.slots: an adapter shares its base's engine: this is set at the base",
        ),
        ("b: {engine: vllm, source: x}\n  a: {adapter_of: b, source: x, engine: vllm}", "models.a.engine: an adapter"),
        (
            "b: {engine: vllm, source: x}\n  a: {adapter_of: b, sorce: x}",
            "models.a.sorce: unknown field; did you mean 'source'?",
        ),
        ("b: {engine: vllm, source: x}\n  a: {adapter_of: b, source: x, aliases: [b]}", "the name 'b' is taken"),
        (
            "b: {engine: vllm, source: x}\n  a: {adapter_of: b, source: x}\nknative: {models: {a: {}}}",
            "'a' is an adapter: its base has the pods",
        ),
    ],
)
def test_every_mistake_is_named_with_its_line(models: str, says: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        parse(f"models:\n  {models}", Path("c.yaml"))
    assert says in caught.value.message
