"""Webhooks on real sockets and a real Redis: told once, in order, to public addresses only, and never in a hurry."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
import standardwebhooks
from aiohttp import web

from fleet import FleetClient, Hooks, Jobs, Queue
from gateway.webhooks import Secret, Webhooks
from gateway.webhooks.delivery import Deliverer
from rewarm.clock import SystemClock
from rewarm.config import WebhooksConfig
from rewarm.errors import WebhookRefused
from rewarm.jobs import Job, JobOutcome, JobSpec, JobState, WebhookSpec
from tests.e2e.stack import until
from tests.fleet.helpers import advance
from tests.redis_server import LocalRedis

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]

KEY = "whsec_" + base64.b64encode(bytes(range(32))).decode()
SECRETS = {"default": Secret.parse(KEY)}


class HandClock:
    """Time that only the test moves. The deliveries' own signatures need the real date."""

    def __init__(self) -> None:
        self.t = 0.0

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return self.t

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("the test drives the rounds")


class Hasty(SystemClock):
    """Pauses of the loop are short."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0.02)


@dataclass
class Sink:
    """A receiver. ``answers`` are used up first, then ``status`` is the answer to everything."""

    port: int
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    answers: list[int] = field(default_factory=list)
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    held: asyncio.Event | None = None  # answers come only once it is set
    under_way: int = 0
    peak: int = 0
    bytes_sent: int = 0
    endless: bool = False
    _runner: web.ServerRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def up(self) -> None:
        self._runner = web.ServerRunner(web.Server(self._handle))
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def down(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def told(self) -> list[tuple[str, str]]:
        """(job, event), in order of arrival."""
        bodies = [json.loads(body) for _, body in self.got]
        return [(body["data"]["id"], body["type"]) for body in bodies]

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        self.got.append((dict(request.headers), body))
        self.under_way += 1
        self.peak = max(self.peak, self.under_way)
        try:
            if self.held is not None:
                await self.held.wait()
            status = self.answers.pop(0) if self.answers else self.status
            if not self.endless:
                return web.Response(status=status, headers=self.headers)
            response = web.StreamResponse(status=status)
            await response.prepare(request)
            while self.bytes_sent < 2**28:
                await response.write(bytes(2**16))
                self.bytes_sent += 2**16
            return response
        finally:
            self.under_way -= 1


@pytest.fixture
def free_port() -> Callable[[], int]:
    def find() -> int:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            return int(s.getsockname()[1])

    return find


@pytest_asyncio.fixture
async def sink(free_port: Callable[[], int]) -> AsyncIterator[Sink]:
    made = Sink(free_port())
    await made.up()
    yield made
    await made.down()


@dataclass
class World:
    client: FleetClient
    jobs: Jobs
    hooks: Hooks
    webhooks: Webhooks
    clock: HandClock
    group: asyncio.TaskGroup

    @property
    def deliverer(self) -> Deliverer:
        return self.webhooks.deliverer

    async def submit(self, id_: str, url: str, *events: str, retention_s: int = 604800) -> str:
        hook = WebhookSpec(url=url, events=events or ("completed", "failed", "cancelled", "expired"))
        spec = JobSpec(
            id=id_,
            tenant="a",
            model="m",
            asked_model="m",
            path="/v1/chat/completions",
            webhook=hook,
            retention_s=retention_s,
        )
        assert (await self.jobs.submit(spec, b"{}")).created
        return id_

    async def cancelled(self, id_: str, url: str) -> str:
        """The shortest way to an event: a job that is cancelled while it waits."""
        await self.submit(id_, url)
        assert await self.jobs.cancel(id_, "a") == "cancelled"
        return id_

    async def completed(self, id_: str, url: str, *events: str) -> str:
        """Claimed and finished, as a worker does."""
        await self.submit(id_, url, *events)
        claimed = await Queue(self.client).claim(
            "m", "worker", "replica", "unix:/gate.sock", [f"grant-{id_}"], request_id=id_, max_jobs=1, boot="boot"
        )
        (lease,) = claimed.jobs
        outcome = JobOutcome(state=JobState.COMPLETED, http_status=200)
        assert await self.jobs.finish(id_, "boot", lease.attempt, outcome, b"{}")
        return id_

    async def turn(self, seconds: float = 0.0) -> None:
        """Time passes, then everything that is due is tried."""
        self.clock.t += seconds
        await advance(self.client, seconds)
        while await self.deliverer.round(self.group):
            await self.deliverer.settle()

    async def shown(self, id_: str) -> dict[str, Any]:
        job = await self.jobs.get(id_)
        assert job is not None
        shown = await self.webhooks.shown(job)
        assert shown is not None
        return shown


@asynccontextmanager
async def a_world(client: FleetClient, lookup: Any = socket.getaddrinfo, **config: Any) -> AsyncIterator[World]:
    clock = HandClock()
    jobs, hooks = Jobs(client), Hooks(client)
    settings = WebhooksConfig(**{"allow_private": True, "timeout": "5s", **config})
    webhooks = Webhooks(settings, SECRETS, hooks, jobs, clock=clock, lookup=lookup)
    try:
        async with asyncio.TaskGroup() as group:
            yield World(client, jobs, hooks, webhooks, clock, group)
    finally:
        await webhooks.close()


@pytest_asyncio.fixture
async def world(fleet_client: FleetClient) -> AsyncIterator[World]:
    async with a_world(fleet_client) as made:
        yield made


# --- what is told --------------------------------------------------------------------------------------------------


async def test_a_message_says_what_happened_and_proves_who_says_it(world: World, sink: Sink) -> None:
    await world.cancelled("job_1", sink.url)
    await world.turn()
    ((headers, body),) = sink.got
    message = standardwebhooks.Webhook(KEY).verify(body, {k.lower(): v for k, v in headers.items()})
    assert message["id"] == headers["webhook-id"] == "msg_job_1_0"
    assert message["type"] == "job.cancelled"
    assert message["data"] == {
        "id": "job_1",
        "status": "cancelled",
        "model": "m",
        "metadata": {},
        "status_url": "/v1/jobs/job_1",
        "events_url": "/v1/jobs/job_1/events",
        "result_url": "/v1/jobs/job_1/result",
        **({"error": message["data"]["error"]} if "error" in message["data"] else {}),
    }
    assert abs(message["created_at"] * 1000 - await world.client.time_ms()) < 60_000
    assert headers["Content-Type"] == "application/json"
    assert headers["User-Agent"].startswith("rewarm/")
    shown = await world.shown("job_1")
    assert (shown["delivered"], shown["tries"], shown["last_error"], shown["next_try"]) == (True, 1, None, None)


async def test_only_what_was_asked_for_is_told(world: World, sink: Sink) -> None:
    await world.completed("job_1", sink.url, "failed")
    await world.completed("job_2", sink.url, "completed")
    await world.completed("job_3", sink.url, "in_progress", "completed")
    await world.turn()
    assert sorted(sink.told()) == [
        ("job_2", "job.completed"),
        ("job_3", "job.completed"),
        ("job_3", "job.in_progress"),
    ]


async def test_every_try_carries_the_same_bytes_and_id(world: World, sink: Sink) -> None:
    sink.answers = [500, 503]
    await world.completed("job_1", sink.url)
    for seconds in (0, 7, 13):
        await world.turn(seconds)
    assert len(sink.got) == 3
    assert len({body for _, body in sink.got}) == 1
    assert {headers["webhook-id"] for headers, _ in sink.got} == {"msg_job_1_0"}
    assert await world.shown("job_1") == {
        "url": sink.url,
        "delivered": True,
        "given_up": False,
        "tries": 3,
        "last_error": None,
        "next_try": None,
    }


async def test_how_it_went_is_shown_as_long_as_the_job_is(world: World, sink: Sink) -> None:
    await world.submit("job_1", sink.url, retention_s=90 * 86400)
    assert await world.jobs.cancel("job_1", "a") == "cancelled"
    await world.turn()
    await advance(world.client, 89 * 86400)
    assert (await world.shown("job_1"))["delivered"]
    assert await world.client.call("PTTL", world.client.keys.hooked("job_1")) > 90 * 86400 * 1000
    await advance(world.client, 2 * 86400)
    assert await world.jobs.expire() == 1
    assert await world.client.call("EXISTS", world.client.keys.hooked("job_1")) == 0


# --- a receiver that is away ---------------------------------------------------------------------------------------


async def test_a_sink_that_is_down_for_five_minutes(world: World, sink: Sink) -> None:
    """No worker is busy with it, and once it is back everything is told once, in order for each job."""
    await sink.down()
    ids = [await world.completed(f"job_{n}", sink.url, "in_progress", "completed") for n in range(8)]
    for _ in range(300):
        await world.turn(1)
        assert await world.client.call("ZCARD", world.client.keys.lease) == 0, "no slot is taken by a webhook"
    for id_ in ids:
        shown = await world.shown(id_)
        assert not shown["delivered"]
        assert not shown["given_up"]
        assert shown["next_try"] is not None
    assert "refused" in (await world.shown("job_0"))["last_error"]

    await sink.up()
    for _ in range(400):
        await world.turn(1)
        if len(sink.got) == 16:
            break
    for id_ in ids:
        assert [event for job, event in sink.told() if job == id_] == ["job.in_progress", "job.completed"]
        assert (await world.shown(id_))["delivered"]
    await world.turn(7200)
    assert len(sink.got) == 16, "nothing is told twice"
    assert await world.client.call("EXISTS", world.client.keys.hooks) == 0


async def test_a_dead_sink_starves_nobody(fleet_client: FleetClient, sink: Sink, free_port: Callable[[], int]) -> None:
    """Hundreds of jobs of a receiver that accepts and never answers; another's are told meanwhile."""
    hole = Sink(free_port(), held=asyncio.Event())
    await hole.up()
    try:
        async with a_world(fleet_client, per_host=2, concurrency=6) as world:
            for n in range(200):
                await world.cancelled(f"job_dead_{n}", hole.url)
            for n in range(20):
                await world.cancelled(f"job_live_{n}", sink.url)
            for _ in range(200):  # rounds, without any time for the hole to be given up in
                world.clock.t += 0.1
                await advance(world.client, 0.1)
                await world.deliverer.round(world.group)
                await asyncio.sleep(0.005)
                if len(sink.got) == 20:
                    break
            assert len(sink.got) == 20
            assert hole.peak == 2, "as many as a host may have"
            assert hole.held is not None
            hole.held.set()
            await world.deliverer.settle()
            for n in range(200):
                await world.hooks.drop(f"job_dead_{n}")
    finally:
        await hole.down()


async def test_a_dead_host_costs_its_other_jobs_no_tries(world: World, sink: Sink) -> None:
    await sink.down()
    for n in range(50):
        await world.cancelled(f"job_{n}", sink.url)
    for _ in range(60):
        await world.turn(1)
    tries = [(await world.shown(f"job_{n}"))["tries"] for n in range(50)]
    assert sum(tries) < 25, "one at a time finds out whether it is back"
    await sink.up()
    for _ in range(300):
        await world.turn(1)
        if len(sink.got) == 50:
            break
    assert len(sink.got) == 50


# --- answers -------------------------------------------------------------------------------------------------------


async def test_a_redirect_is_not_followed(world: World, sink: Sink) -> None:
    sink.answers, sink.headers = [307, 302], {"Location": sink.url + "/other"}
    await world.cancelled("job_1", sink.url)
    await world.turn()
    await world.turn(7)
    shown = await world.shown("job_1")
    assert (shown["tries"], shown["delivered"], len(sink.got)) == (2, False, 2)
    assert shown["last_error"] == "HTTP 302: redirects are not followed"
    await world.turn(13)
    assert (await world.shown("job_1"))["delivered"]


async def test_gone_ends_it_and_the_next_event_has_its_own_chance(world: World, sink: Sink) -> None:
    sink.answers = [410]
    await world.completed("job_1", sink.url, "in_progress", "completed")
    await world.turn()
    assert [event for _, event in sink.told()] == ["job.in_progress", "job.completed"]
    shown = await world.shown("job_1")
    assert (shown["delivered"], shown["given_up"], shown["next_try"]) == (False, True, None)


async def test_retry_after_is_honoured(world: World, sink: Sink) -> None:
    sink.answers, sink.headers = [503], {"Retry-After": "600"}
    await world.cancelled("job_1", sink.url)
    await world.turn()
    await world.turn(599)
    assert len(sink.got) == 1
    await world.turn(2)
    assert len(sink.got) == 2


async def test_it_is_given_up_after_so_many_tries(fleet_client: FleetClient, sink: Sink) -> None:
    async with a_world(fleet_client, max_tries=3) as world:
        sink.status = 500
        await world.cancelled("job_1", sink.url)
        for _ in range(10):
            await world.turn(3700)
        shown = await world.shown("job_1")
    assert len(sink.got) == 3
    assert (shown["given_up"], shown["tries"]) == (True, 3)
    assert world.webhooks.tries() == {("delivered",): 0, ("failed",): 2, ("given_up",): 1}
    assert shown["last_error"] == "HTTP 500; given up after 3 tries"
    assert shown["next_try"] is None


async def test_an_endless_answer_is_not_read(world: World, sink: Sink) -> None:
    sink.endless = True
    await world.cancelled("job_1", sink.url)
    await world.turn()
    assert (await world.shown("job_1"))["delivered"]
    assert sink.bytes_sent < 2**25, "what the sockets hold, at the most"


async def test_while_it_is_tried_there_is_no_next_try(world: World, sink: Sink) -> None:
    sink.answers = [503]
    await world.cancelled("job_1", sink.url)
    await world.turn()
    assert (await world.shown("job_1"))["next_try"] is not None
    sink.held = asyncio.Event()
    world.clock.t += 7
    await advance(world.client, 7)
    assert await world.deliverer.round(world.group) == 1
    shown = await world.shown("job_1")
    assert (shown["tries"], shown["delivered"], shown["next_try"]) == (1, False, None), "the lease's end is none"
    sink.held.set()
    await world.deliverer.settle()
    assert (await world.shown("job_1"))["delivered"]


async def test_a_silent_receiver_is_left_after_the_timeout(fleet_client: FleetClient, sink: Sink) -> None:
    sink.held = asyncio.Event()
    async with a_world(fleet_client, timeout="0.2s") as world:
        await world.cancelled("job_1", sink.url)
        await world.turn()
        shown = await world.shown("job_1")
        assert shown["last_error"] == "no answer within 0.2 s"
        sink.held.set()
        await world.turn(10)
        assert (await world.shown("job_1"))["delivered"]


async def test_nonsense_is_a_failure(world: World, free_port: Callable[[], int]) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n")
        writer.close()

    port = free_port()
    server = await asyncio.start_server(handle, "127.0.0.1", port)
    async with server:
        await world.cancelled("job_1", f"http://127.0.0.1:{port}/")
        await world.turn()
    shown = await world.shown("job_1")
    assert (shown["delivered"], shown["tries"]) == (False, 1)
    assert 0 < len(shown["last_error"]) <= 200
    await world.hooks.drop("job_1")


# --- addresses -----------------------------------------------------------------------------------------------------


def names(**table: list[list[str]]) -> Any:
    """A resolver whose answer to each name may change from one question to the next; the last one stays."""

    def lookup(host: str, port: int, **options: Any) -> list[tuple[Any, ...]]:
        if host not in table:
            return socket.getaddrinfo(host, port, **{**options, "flags": socket.AI_NUMERICHOST})
        answers = table[host]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [info for address in found for info in socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)]

    return lookup


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f.0.0.1/",
        "http://0177.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://0/",
        "https://10.0.0.1:6379/",
    ],
)
async def test_a_private_target_is_refused_at_submit(fleet_client: FleetClient, url: str) -> None:
    async with a_world(fleet_client, allow_private=False) as world:
        with pytest.raises(WebhookRefused):
            await world.webhooks.check(WebhookSpec(url=url))


async def test_one_private_address_of_several_is_enough(fleet_client: FleetClient) -> None:
    lookup = names(mixed=[["93.184.215.14", "10.0.0.5"]], good=[["93.184.215.14"]])
    async with a_world(fleet_client, lookup, allow_private=False) as world:
        with pytest.raises(WebhookRefused) as caught:
            await world.webhooks.check(WebhookSpec(url="https://mixed/hook"))
        assert caught.value.message == "webhook: the host mixed is a private network"
        assert "10.0.0.5" not in caught.value.message, "what a name means inside is nobody's business"
        await world.webhooks.check(WebhookSpec(url="https://good/hook"))


async def test_a_name_that_does_not_exist_is_refused_and_one_that_cannot_be_asked_now_is_not(
    fleet_client: FleetClient,
) -> None:
    def lookup(host: str, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
        raise socket.gaierror(socket.EAI_AGAIN if host == "later.example" else socket.EAI_NONAME, "no")

    async with a_world(fleet_client, lookup, allow_private=False) as world:
        with pytest.raises(WebhookRefused, match="does not exist"):
            await world.webhooks.check(WebhookSpec(url="https://never.example/"))
        await world.webhooks.check(WebhookSpec(url="https://later.example/"))


async def test_a_name_that_turns_private_after_the_check_is_refused_at_connect(
    fleet_client: FleetClient, sink: Sink
) -> None:
    """DNS rebinding: public when it is looked at, 127.0.0.1 when it is used."""
    lookup = names(rebind=[["93.184.215.14"], ["127.0.0.1"]])
    async with a_world(fleet_client, lookup, allow_private=False) as world:
        url = f"http://rebind:{sink.port}/hook"
        await world.webhooks.check(WebhookSpec(url=url))
        await world.cancelled("job_1", url)
        await world.turn()
        shown = await world.shown("job_1")
        await world.hooks.drop("job_1")
    assert sink.got == []
    assert (shown["delivered"], shown["last_error"]) == (False, "the host rebind is this machine")


async def test_an_address_in_the_url_is_judged_at_connect_too(fleet_client: FleetClient, sink: Sink) -> None:
    """Numbers need no lookup, so nothing that only watches lookups would see them."""
    async with a_world(fleet_client, allow_private=False) as world:
        await world.cancelled("job_1", sink.url)  # as if accepted before the rules became stricter
        await world.cancelled("job_2", f"http://[::ffff:127.0.0.1]:{sink.port}/")
        await world.turn()
        for id_ in ("job_1", "job_2"):
            assert (await world.shown(id_))["last_error"].endswith("is this machine")
            await world.hooks.drop(id_)
    assert sink.got == []


async def test_what_the_operator_allows_by_name_or_network(fleet_client: FleetClient, sink: Sink) -> None:
    lookup = names(**{"sink.internal": [["127.0.0.1"]]})
    allow = {"allow_private": False, "allow": ("sink.internal", "127.0.0.1/32")}
    async with a_world(fleet_client, lookup, **allow) as world:
        for n, host in enumerate(("sink.internal", "127.0.0.1")):
            url = f"http://{host}:{sink.port}/"
            await world.webhooks.check(WebhookSpec(url=url))
            await world.cancelled(f"job_{n}", url)
        with pytest.raises(WebhookRefused):
            await world.webhooks.check(WebhookSpec(url="http://[::1]/"))
        await world.turn()
    assert len(sink.got) == 2


async def test_a_proxy_of_the_environment_is_not_used(
    world: World, sink: Sink, free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    await world.cancelled("job_1", sink.url)
    await world.turn()
    assert len(sink.got) == 1


# --- secrets, and what goes wrong on our side ----------------------------------------------------------------------


async def test_without_a_secret_no_webhook_is_accepted(fleet_client: FleetClient) -> None:
    hooks, jobs = Hooks(fleet_client), Jobs(fleet_client)
    webhooks = Webhooks(WebhooksConfig(allow_private=True), {}, hooks, jobs)
    with pytest.raises(WebhookRefused, match="REWARM_WEBHOOK_SECRET"):
        await webhooks.check(WebhookSpec(url="http://127.0.0.1/"))
    with pytest.raises(WebhookRefused, match="no secret is named 'other'"):
        await webhooks.check(WebhookSpec(url="http://127.0.0.1/", secret_id="other"))
    await webhooks.check(None)
    await webhooks.close()


async def test_a_gateway_that_dies_in_between_leaves_it_to_another(fleet_client: FleetClient, sink: Sink) -> None:
    async with a_world(fleet_client) as world:
        await world.cancelled("job_1", sink.url)
        (lost,) = await world.hooks.claim("a gateway that is killed now", 10, timedelta(seconds=25))
        await world.turn(24)
        assert sink.got == []
        await world.turn(2)
        assert sink.told() == [("job_1", "job.cancelled")]
        assert not await world.hooks.done(lost)


async def test_a_job_that_was_forgotten_is_not_told_of(world: World, sink: Sink) -> None:
    class Nobody:
        async def get_many(self, ids: Any) -> list[Job | None]:
            return [None for _ in ids]

    await world.cancelled("job_1", sink.url)
    world.deliverer._jobs = Nobody()
    await world.turn()
    assert sink.got == []
    assert await world.client.call("EXISTS", world.client.keys.hooks) == 0


async def test_redis_that_goes_away_after_the_receiver_has_answered(own_redis: LocalRedis, sink: Sink) -> None:
    """It cannot be written down that it was told: it is told again, under the same id. The loop itself goes on."""
    client = await FleetClient.connect(own_redis.url, "away", check=False)
    config = WebhooksConfig(allow_private=True, timeout=timedelta(seconds=5))
    webhooks = Webhooks(config, SECRETS, Hooks(client), Jobs(client), clock=Hasty())
    sink.held = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            world = World(client, Jobs(client), Hooks(client), webhooks, HandClock(), group)
            await world.cancelled("job_1", sink.url)
            running = group.create_task(webhooks.run())
            await until(lambda: sink.under_way == 1, "the receiver has it")
            own_redis.kill()
            sink.held.set()
            await until(lambda: webhooks.deliverer.under_way == 0, "it is not written down")
            own_redis.start()
            await advance(client, 30)  # the lease is over

            async def told() -> bool:
                return bool((await world.shown("job_1"))["delivered"])

            await until(told, "it is told again")
            running.cancel()
    finally:
        await webhooks.close()
        await client.close()
    assert [headers["webhook-id"] for headers, _ in sink.got] == ["msg_job_1_0"] * 2
