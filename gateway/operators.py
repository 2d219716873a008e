"""The operator's endpoints, behind ``rewarm ps``, ``wake``, ``sleep`` and ``drain``."""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from fleet import Waiting
from gateway.breakers import Breakers
from gateway.calls import Calls
from gateway.dispatch import Dispatcher
from gateway.http import Request
from gateway.keys import Keyring
from gateway.models import model_state
from gateway.view import View
from rewarm.config import ConfigState, is_loopback
from rewarm.errors import CommandRefused, InvalidApiKey, InvalidJson, InvalidRequest, ModelNotFound, NotFound
from rewarm.messages import to_json
from rewarm.paths import Paths

_log = logging.getLogger("rewarm.gateway.operators")

TOKEN_HEADER = "X-Rewarm-Operator"  # noqa: S105  # a header's name
_FORWARDED = ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via")

Kind = Literal["wake", "sleep", "drain"]


class Command(msgspec.Struct, forbid_unknown_fields=True):
    kind: Kind
    target: str


class CommandSender(Protocol):
    async def send(self, kind: Kind, target: str) -> None: ...


def token_path(paths: Paths) -> Path:
    """A secret that only this machine's owner can read, so that the command line needs no API key here."""
    return paths.run / "operator.token"


def make_token(paths: Paths) -> str:
    """The token of this machine; made once, shared by its gateways."""
    path = token_path(paths)
    try:
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(secrets.token_urlsafe(32), encoding="ascii")
    except FileExistsError:
        pass
    return path.read_text(encoding="ascii").strip()


class Operators:
    def __init__(
        self,
        keys: Keyring,
        view: View,
        calls: Calls,
        dispatcher: Dispatcher,
        breakers: Breakers,
        commands: CommandSender,
        *,
        token: str | None,
        about: dict[str, Any],
        file: Callable[[], ConfigState] = ConfigState,
    ) -> None:
        self._keys = keys
        self._view = view
        self._calls = calls
        self._dispatcher = dispatcher
        self._breakers = breakers
        self._commands = commands
        self._token = token
        self._about = about
        self._file = file

    # --- who may ---------------------------------------------------------------------------------------------------

    def may_look(self, request: Request) -> None:
        """The token or any key; without any keys the gateway is on loopback only, and everybody there. Raise
        InvalidApiKey.

        Being on this machine is not enough: a proxy on it makes everybody look local.
        """
        if not self.has_token(request):
            self._keys.identify(request.headers)

    def may_command(self, request: Request) -> None:
        """The token or an operator's key; without any keys everybody on this machine. Raise InvalidApiKey."""
        if self.has_token(request):
            return
        caller = self._keys.identify(request.headers)
        if not (caller.operator or (self._keys.open and _is_local(request))):
            raise InvalidApiKey("commands need a key with `operator: true`, or the token in this machine's run folder")

    def has_token(self, request: Request) -> bool:
        given = request.headers.get(TOKEN_HEADER)
        if given is None or self._token is None:
            return False
        return hmac.compare_digest(given.encode(errors="surrogateescape"), self._token.encode())  # str: ASCII only

    # --- what they see and do ----------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Everything ``rewarm ps`` shows: models with their state, workers with their replicas, this gateway."""
        view, fleet = self._view, self._view.fleet
        replicas = []
        for beat in fleet.workers.values():
            told = to_json(beat)
            told["age_s"] = round(max(0, view.now_ms() - beat.at_ms) / 1000, 2)
            for replica in told["replicas"]:
                progress = fleet.progress.get(replica["replica"])
                if progress is not None:
                    replica["progress"] = to_json(progress)
            replicas.append(told)
        models = {entry.model: model_state(view, self._breakers, entry) for entry in fleet.catalogue.values()}
        for model, state in models.items():
            status = fleet.statuses.get(model)
            state["demand_ms"] = fleet.demand_ms.get(model)
            if status is not None and status.failure is not None:
                state["failure"] = to_json(status.failure)
            elif not state["adapter_of"]:
                state["failure"] = None
            state["failed_until_ms"] = status.failed_until_ms if status is not None else 0
            state["places"] = [to_json(place) for place in status.places] if status is not None else []
        return {
            "now_ms": view.now_ms(),
            "redis": "ok" if view.available else "unreachable",
            "leader": fleet.leader,
            "term": fleet.term,
            "gateways": fleet.gateways,
            "gateway": {**self._about, "requests": len(self._calls), "ejections": self._dispatcher.ejections},
            "configuration": asdict(self._file()),
            "models": models,
            "workers": replicas,
        }

    async def command(self, request: Request, body: bytes) -> dict[str, Any]:
        """Pass a command to the leader. Raise CommandRefused, InvalidJson, InvalidRequest, ModelNotFound, NotFound,
        QueueUnavailable."""
        # A page of another origin can post a form or text here, but not JSON without being asked first.
        if request.content_type != "application/json":
            raise InvalidRequest("send the command with Content-Type: application/json")
        try:
            command = msgspec.json.decode(body, type=Command)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"a command is {{kind: wake|sleep|drain, target: name}}: {error}") from error
        except msgspec.DecodeError as error:
            raise InvalidJson(f"the body is not JSON: {error}") from error
        target = self._target(command)
        if command.kind == "sleep" and (why := await self._keeps_up(target)):
            raise CommandRefused(f"{target!r} does not go to sleep: {why}")
        await self._commands.send(command.kind, target)
        _log.info("command kind=%s target=%s", command.kind, target)
        return {"accepted": True, "kind": command.kind, "target": target}

    async def _keeps_up(self, model: str) -> str:
        """Why the leader would not put it to sleep; '' where it would."""
        await self._view.refresh()  # what was read a second ago may have been served since
        entry, waiting = self._view.entry(model), self._view.fleet.waiting.get(model, Waiting())
        if entry is not None and (least := entry.policy.min_replicas):
            return f"its min_replicas is {least}"
        if waiting.jobs:
            return f"{_counted(waiting.jobs, 'job')} for it and would wake it again"
        if waiting.count:
            return f"{_counted(waiting.count, 'request')} for it and would wake it again"
        return ""

    def _target(self, command: Command) -> str:
        """A model by any of its names; for drain also a worker or a replica."""
        entry = self._view.entry(command.target)
        if entry is not None:
            if entry.remote is not None:
                raise InvalidRequest(f"{entry.model!r} runs elsewhere: there is nothing to {command.kind}")
            if entry.base and command.kind != "wake":
                raise InvalidRequest(
                    f"{entry.model!r} is an adapter of {entry.base!r}, which has the replicas: {command.kind} that"
                )
            return entry.home
        if command.kind != "drain":
            raise ModelNotFound(f"the model {command.target!r} does not exist", param="target")
        if command.target not in self._view.fleet.workers and self._view.report(command.target) is None:
            raise NotFound(f"there is no model, worker or replica {command.target!r}", param="target")
        return command.target


def _counted(number: int, what: str) -> str:
    return f"1 {what} waits" if number == 1 else f"{number} {what}s wait"


def _is_local(request: Request) -> bool:
    """From this machine and not through a proxy on it, as far as that can be told."""
    return is_loopback(request.remote or "") and not any(name in request.headers for name in _FORWARDED)
