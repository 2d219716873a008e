"""``rewarm check`` of a remote model: what is missing here, without ever showing a key."""

from __future__ import annotations

import pytest

from rewarm.cli.check import warnings
from rewarm.config import parse


def said(more: str, url: str = "https://api.example.com/v1") -> dict[str, str]:
    config = parse(f"models:\n  far: {{engine: remote, url: '{url}', {more}}}")
    return {found.field: found.message for found in warnings(config) if found.field.startswith("models.")}


def test_a_key_that_the_environment_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAR_KEY", raising=False)
    assert said("key_env: FAR_KEY") == {
        "models.far.key_env": "the environment has no FAR_KEY: the upstream will refuse every request"
    }
    monkeypatch.setenv("FAR_KEY", "sk-1")
    assert said("key_env: FAR_KEY") == {}


def test_no_key_at_all() -> None:
    assert "without a key" in said("concurrency: 4")["models.far.url"]


def test_a_key_in_clear_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAR_KEY", "sk-1")
    assert "clear text" in said("key_env: FAR_KEY", "http://api.example.com/v1")["models.far.url"]
    assert said("key_env: FAR_KEY", "http://127.0.0.1:9000/v1") == {}


def test_certificates_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAR_KEY", "sk-1")
    assert "No such file" in said("key_env: FAR_KEY, ca_file: /nowhere.pem")["models.far.ca_file"]
