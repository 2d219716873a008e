"""Webhooks, the part without a network: whom they may reach, how they are signed, when they are tried again."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest
import standardwebhooks
from pydantic import ValidationError

from gateway.webhooks import Allowed, Secret, read_secrets
from gateway.webhooks.addresses import refusal
from gateway.webhooks.hosts import DOWN_AFTER, FORGET_AFTER_S, MAX_DOWN_S, Hosts
from gateway.webhooks.schedule import (
    FIRST_DELAY_S,
    JITTER,
    MAX_DELAY_S,
    Again,
    Answer,
    Bounds,
    GivenUp,
    Told,
    backoff_s,
    follow,
)
from gateway.webhooks.signing import sign
from gateway.webhooks.target import parse_target
from rewarm.config import WebhooksConfig
from rewarm.errors import ConfigInvalid, WebhookRefused

NOBODY = Allowed()
KEY = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER_KEY = "whsec_" + base64.b64encode(bytes(32)).decode()


# --- addresses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("127.0.0.1", "this machine"),
        ("127.8.9.10", "this machine"),
        ("0.0.0.0", "this machine"),
        ("0.1.2.3", "this machine"),
        ("::1", "this machine"),
        ("::", "this machine"),
        ("10.0.0.1", "a private network"),
        ("172.16.0.1", "a private network"),
        ("172.31.255.255", "a private network"),
        ("192.168.1.1", "a private network"),
        ("fc00::1", "a private network"),
        ("fd00:ec2::254", "a private network"),  # AWS's metadata over IPv6
        ("fec0::1", "a private network"),
        ("100.64.0.1", "carrier-grade NAT"),
        ("100.100.100.200", "carrier-grade NAT"),  # Alibaba's metadata
        ("169.254.169.254", "link-local"),  # most clouds' metadata
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("168.63.129.16", "a cloud's metadata service"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.250", "multicast"),
        ("ff02::1", "multicast"),
        ("ff0e::1", "multicast"),
        ("192.0.2.1", "documentation"),
        ("198.51.100.7", "documentation"),
        ("203.0.113.7", "documentation"),
        ("2001:db8::1", "documentation"),
        ("192.0.0.192", "a reserved range"),  # Oracle's metadata
        ("198.18.0.1", "a reserved range"),
        ("240.0.0.1", "a reserved range"),
        ("255.255.255.255", "a reserved range"),
        ("100::1", "a reserved range"),
        ("2001::1", "a reserved range"),  # Teredo
        ("64:ff9b:1::7f00:1", "a reserved range"),
        # An IPv4 address inside an IPv6 one.
        ("::ffff:127.0.0.1", "this machine"),
        ("::ffff:a9fe:a9fe", "link-local"),
        ("::ffff:0:10.0.0.1", "a private network"),
        ("::127.0.0.1", "this machine"),
        ("64:ff9b::10.0.0.1", "a private network"),
        ("64:ff9b::7f00:1", "this machine"),
        ("2002:7f00:1::", "this machine"),
        ("2002:a00:1::1", "a private network"),
        ("not an address", "no IP address"),
    ],
)
def test_what_is_not_public_is_refused(address: str, what: str) -> None:
    assert refusal(address, "hooks.example", NOBODY) == what


@pytest.mark.parametrize(
    "address",
    [
        "93.184.215.14",
        "8.8.8.8",
        "172.15.255.255",
        "172.32.0.1",
        "100.63.255.255",
        "100.128.0.1",
        "2606:4700::6810:84e5",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2002:808:808::1",
    ],
)
def test_what_is_public_is_not(address: str) -> None:
    assert refusal(address, "hooks.example", NOBODY) is None


def test_an_operator_opens_networks_hosts_or_everything() -> None:
    some = Allowed.parse(["10.1.0.0/16", "192.168.7.7", "fd12::/16", "Sink.Internal"])
    assert refusal("10.1.2.3", "x", some) is None
    assert refusal("192.168.7.7", "x", some) is None
    assert refusal("fd12::1", "x", some) is None
    assert refusal("127.0.0.1", "sink.internal", some) is None
    assert refusal("10.2.0.1", "x", some) == "a private network"
    assert refusal("192.168.7.8", "x", some) == "a private network"
    assert refusal("127.0.0.1", "not-sink.internal", some) == "this machine"
    assert refusal("127.0.0.1", "x", Allowed(private=True)) is None


@pytest.mark.parametrize("entry", ["10.1.0.1/16", "10.0.0.0/40", "host:80", "", ".", "https://x/", "127.1", "-x"])
def test_an_entry_that_is_neither_is_an_error_of_the_configuration(entry: str) -> None:
    with pytest.raises(ValidationError, match="no network and no host name"):
        WebhooksConfig(allow=(entry,))


# --- URLs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://example.com/", "https://"),
        ("file:///etc/passwd", "https://"),
        ("gopher://example.com/", "https://"),
        ("//example.com/x", "https://"),
        ("example.com/x", "https://"),
        ("", "https://"),
        ("https://user@example.com/", "password"),
        ("https://user:secret@example.com/", "password"),
        ("https://:secret@example.com/", "password"),
        ("https://example.com\\@127.0.0.1/", "backslashes"),
        ("https://example.com/a b", "spaces"),
        ("https://example.com/\r\nX-Evil: 1", "control"),
        ("https://", "host"),
        ("https:///path", "host"),
        ("https://example.com:0/", "port"),
        ("https://example.com:99999/", "read"),
        ("https://example.com:x/", "read"),
        ("https://[::1/", "read"),
        ("http://127.1/", "unusual"),
        ("http://2130706433/", "unusual"),
        ("http://0x7f.0.0.1/", "unusual"),
        ("http://0177.0.0.1./", "unusual"),
        ("http://127.0.0.1./", "unusual"),
        ("https://example.com/" + "x" * 2048, "longer"),
    ],
)
def test_a_url_that_is_none_for_a_webhook(url: str, says: str) -> None:
    with pytest.raises(WebhookRefused, match=says) as caught:
        parse_target(url)
    assert caught.value.param == "webhook.url"
    assert "secret" not in caught.value.message


def test_a_good_url() -> None:
    target = parse_target("https://Hooks.Example.COM/a?b=c#d")
    assert (target.host, target.port, str(target.url)) == ("hooks.example.com", 443, "https://hooks.example.com/a?b=c")
    assert target.name == "hooks.example.com:443"
    assert parse_target("http://[2606:4700::1]:8080/").name == "[2606:4700::1]:8080"
    assert parse_target("https://bücher.example/").host == "xn--bcher-kva.example"


# --- signatures ----------------------------------------------------------------------------------------------------


def test_a_receiver_verifies_with_any_standard_webhooks_library() -> None:
    body = b'{"type": "job.completed"}'
    now = int(datetime.now(UTC).timestamp())
    headers = sign(Secret.parse(KEY), "msg_job_1_0", now, body)
    assert standardwebhooks.Webhook(KEY).verify(body, headers) == json.loads(body)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(KEY).verify(body + b" ", headers)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(KEY).verify(body, {**headers, "webhook-timestamp": str(now - 1)})
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(KEY).verify(body, {**headers, "webhook-id": "msg_other"})


def test_while_a_key_is_replaced_both_sign() -> None:
    both = Secret.parse(f"{KEY} {OTHER_KEY}")
    headers = sign(both, "msg_1", int(datetime.now(UTC).timestamp()), b"{}")
    for key in (KEY, OTHER_KEY):
        standardwebhooks.Webhook(key).verify(b"{}", headers)


def test_secrets_come_from_the_environment() -> None:
    names = {"default": "HOOK", "team": "TEAM_HOOK"}
    assert read_secrets(names, {"HOOK": f" {KEY}\n"}) == {"default": Secret.parse(KEY)}
    for bad in ("hunter2", "whsec_", "whsec_hunter2=", "whsec_***", KEY.removeprefix("whsec_")):
        with pytest.raises(ConfigInvalid, match=r"secrets\.team.*TEAM_HOOK") as caught:
            read_secrets(names, {"TEAM_HOOK": bad})
        assert "hunter2" not in caught.value.message
    assert KEY not in repr(Secret.parse(KEY))


# --- tries ---------------------------------------------------------------------------------------------------------


def after(answer: Answer, tries: int = 1, age_s: float = 0.0, bounds: Bounds | None = None) -> Told | Again | GivenUp:
    return follow(answer, tries, age_s, 1_700_000_000.0, 0.5, bounds or Bounds())


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_told(status: int) -> None:
    assert after(Answer(status)) == Told()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_a_failure_that_says_so(status: int) -> None:
    next_ = after(Answer(status))
    assert isinstance(next_, Again)
    assert next_.error == f"HTTP {status}: redirects are not followed"


def test_gone_is_gone() -> None:
    assert isinstance(after(Answer(410)), GivenUp)


@pytest.mark.parametrize("answer", [Answer(500), Answer(404), Answer(None, "Connection refused")])
def test_everything_else_is_tried_again(answer: Answer) -> None:
    next_ = after(answer)
    assert isinstance(next_, Again)
    assert next_.delay == timedelta(seconds=FIRST_DELAY_S)


def test_tries_come_ever_later_up_to_an_hour() -> None:
    delays = [backoff_s(n, 0.5) for n in range(1, 21)]
    assert delays[:4] == [5, 10, 20, 40]
    assert delays == sorted(delays)
    assert delays[-1] == MAX_DELAY_S
    assert backoff_s(10_000, 0.5) == MAX_DELAY_S
    assert backoff_s(1, 0.0) == FIRST_DELAY_S * (1 - JITTER)
    assert backoff_s(1, 1.0) == FIRST_DELAY_S * (1 + JITTER)


def test_the_receiver_may_ask_for_more_time() -> None:
    asked = [
        after(Answer(503, retry_after="120")),
        after(Answer(429, retry_after="Tue, 14 Nov 2023 22:15:20 GMT")),  # 120 s after "now"
        after(Answer(503, retry_after="1")),  # less than the backoff: the backoff
        after(Answer(503, retry_after="-5")),
        after(Answer(503, retry_after="soon")),
        after(Answer(500, retry_after="120")),  # means nothing there
    ]
    assert [next_.delay.total_seconds() for next_ in asked if isinstance(next_, Again)] == [120, 120, 5, 5, 5, 5]


def test_tries_end_by_number_and_by_age() -> None:
    bounds = Bounds(max_tries=3, max_age=timedelta(hours=1))
    assert isinstance(after(Answer(500), tries=2, bounds=bounds), Again)
    number = after(Answer(500), tries=3, bounds=bounds)
    assert isinstance(number, GivenUp)
    assert number.error == "HTTP 500; given up after 3 tries"
    age = after(Answer(None, "no answer"), tries=2, age_s=3599, bounds=bounds)
    assert isinstance(age, GivenUp)
    assert "0:59:59" in age.error
    assert isinstance(after(Answer(503, retry_after="99999999"), bounds=bounds), GivenUp)
    assert after(Answer(200), tries=3, age_s=9999, bounds=bounds) == Told(), "the last try may succeed"


# --- receivers -----------------------------------------------------------------------------------------------------


def test_a_host_has_so_many_deliveries_under_way_and_no_more() -> None:
    hosts = Hosts(per_host=2)
    assert hosts.admit("a", 0) is None
    assert hosts.admit("a", 0) is None
    first = hosts.admit("a", 0)
    assert first is not None
    later = [hosts.admit("a", 0) or 0 for _ in range(1000)]
    assert later == sorted(later), "who comes last is looked at last"
    assert later[-1] > first
    assert hosts.admit("b", 0) is None, "others have their own"
    hosts.ended("a", 1, 1.0, well=True)
    assert hosts.admit("a", 1) is None


def test_a_dead_host_is_asked_by_one_at_a_time() -> None:
    hosts = Hosts(per_host=4)
    now = 0.0
    for _ in range(DOWN_AFTER):
        assert hosts.admit("a", now) is None
        hosts.ended("a", now, 10.0, well=False)
    waits = []
    for _ in range(10):
        wait = hosts.admit("a", now)
        assert wait is not None, "it is down"
        waits.append(wait)
        now += wait
        assert hosts.admit("a", now) is None, "one may look"
        assert hosts.admit("a", now) is not None, "and no other"
        hosts.ended("a", now, 10.0, well=False)
    assert waits == sorted(waits)
    assert waits[-1] == MAX_DOWN_S
    now += MAX_DOWN_S
    assert hosts.admit("a", now) is None
    hosts.ended("a", now, 0.1, well=True)
    assert [hosts.admit("a", now) for _ in range(4)] == [None] * 4, "it is back"


def test_hosts_are_forgotten() -> None:
    hosts = Hosts(per_host=1)
    hosts.admit("a", 0)
    hosts.prune(FORGET_AFTER_S * 2)
    assert len(hosts) == 1, "not while something is under way"
    hosts.ended("a", 10, 1, well=True)
    hosts.prune(11 + FORGET_AFTER_S)
    assert len(hosts) == 0
