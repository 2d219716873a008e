"""Bounds, patience and progress mode: numbers and headers in, a decision out."""

from __future__ import annotations

import hashlib

import pytest

from gateway.holding import Holding, patience_s, progress_mode
from gateway.keys import Caller, Keyring
from gateway.parse import ENDPOINTS, peek
from rewarm.config import GatewayConfig, HoldingConfig, KeyConfig, is_loopback
from rewarm.errors import InvalidApiKey, InvalidHeader, QueueFull

CONFIG = HoldingConfig.model_validate({"patience": "10m", "max_patience": "1h"})


class TestPatience:
    @pytest.mark.parametrize(
        ("headers", "seconds"),
        [
            ({}, 600),
            ({"X-Rewarm-Max-Wait": "30"}, 30),
            ({"X-Rewarm-Max-Wait": "5m"}, 300),
            ({"X-Rewarm-Max-Wait": "0"}, 0),
            ({"X-Rewarm-Max-Wait": "2d"}, 3600),
            ({"x-stainless-read-timeout": "600.0"}, 598),
            ({"x-stainless-timeout": "10"}, 9),
            ({"x-stainless-timeout": "100", "x-stainless-read-timeout": "20"}, 18),
            ({"x-stainless-read-timeout": "NOT_GIVEN"}, 600),
            ({"x-stainless-read-timeout": "nan"}, 600),
            ({"x-stainless-timeout": "10", "X-Rewarm-Max-Wait": "120"}, 120),
        ],
    )
    def test_what_the_client_asks_for_then_what_its_timeout_allows(
        self, headers: dict[str, str], seconds: float
    ) -> None:
        assert patience_s(headers, CONFIG) == pytest.approx(seconds)

    @pytest.mark.parametrize("text", ["", "soon", "-1", "1e3", "inf", "9" * 400])
    def test_nonsense_is_an_error(self, text: str) -> None:
        with pytest.raises(InvalidHeader):
            patience_s({"X-Rewarm-Max-Wait": text}, CONFIG)


class TestMode:
    def test_header_then_key_then_configuration(self) -> None:
        config = GatewayConfig(progress="none")
        key = KeyConfig(name="k", sha256="0" * 64, progress="chunks")
        assert progress_mode({}, Caller(None), config) == "none"
        assert progress_mode({}, Caller(key), config) == "chunks"
        assert progress_mode({"X-Rewarm-Progress": " Comments "}, Caller(key), config) == "comments"
        with pytest.raises(InvalidHeader, match="comments, chunks, none"):
            progress_mode({"X-Rewarm-Progress": "events!"}, Caller(None), config)


class TestHolding:
    def test_bounds_by_count_and_bytes_for_a_model_and_in_all(self) -> None:
        holding = Holding(HoldingConfig(max_requests=3, max_bytes=1000, max_bytes_per_model=100))
        holding.admit("a", 60, max_waiting=2)
        with pytest.raises(QueueFull, match="60 bytes"):
            holding.admit("a", 60, max_waiting=2)
        holding.admit("a", 40, max_waiting=2)
        with pytest.raises(QueueFull, match="2 requests wait for 'a'"):
            holding.admit("a", 0, max_waiting=2)
        holding.admit("b", 1, max_waiting=2)
        with pytest.raises(QueueFull, match="3 requests wait in this gateway"):
            holding.admit("c", 1, max_waiting=2)
        for model, size in (("a", 60), ("a", 40), ("b", 1)):
            holding.release(model, size)
        assert holding.models() == {}
        assert holding.count == 0

    def test_a_body_that_does_not_fit_is_refused_before_it_is_read(self) -> None:
        holding = Holding(HoldingConfig(max_bytes=100))
        holding.read(100)
        with pytest.raises(QueueFull):
            holding.read(1)
        holding.forget(100)
        holding.read(1)


class TestKeyring:
    def test_only_the_digest_is_known(self) -> None:
        ring = Keyring([KeyConfig(name="t", sha256=hashlib.sha256(b"s\xc3\xa9cret").hexdigest())])
        for _ in range(2):
            assert ring.identify({"Authorization": "bearer s\u00e9cret"}).tenant == "t"
        for header in ("Bearer ", "Bearer", "Token s\u00e9cret", "s\u00e9cret", "Bearer \udc80"):
            with pytest.raises(InvalidApiKey):
                ring.identify({"Authorization": header})

    @pytest.mark.parametrize(
        ("host", "local"),
        [
            ("127.0.0.1", True),
            ("::1", True),
            ("localhost", True),
            ("127.8.8.8", True),
            ("0.0.0.0", False),
            ("host", False),
        ],
    )
    def test_loopback(self, host: str, local: bool) -> None:
        assert is_loopback(host) is local


def test_only_what_is_needed_is_read_of_a_body() -> None:
    body = b'{"x": {"model": "inner"}, "model": "m", "messages": [{}], "stream": null, "n": 1e400}'
    seen = peek(body, ENDPOINTS["/v1/chat/completions"])
    assert (seen.model, seen.stream) == ("m", None)
