"""A small client of a running gateway, for the commands that look at the fleet or tell it what to do."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from rewarm.cli.banner import base_url
from rewarm.cli.options import paths_of
from rewarm.config import Config, load
from rewarm.errors import CommandRefused, NothingRunning

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_S = 10.0

# As in gateway.operators, whose import would take half a second of every `rewarm ps`; a test compares them.
TOKEN_HEADER = "X-Rewarm-Operator"  # noqa: S105 -- a header's name
TOKEN_FILE = "operator.token"  # noqa: S105 -- a file's name


def gateway_options(command: F) -> F:
    """``--url``, ``--config`` and ``--key``: which gateway, and who asks."""
    url = click.option("--url", envvar="REWARM_URL", help=f"The gateway.  [env: REWARM_URL; default: {DEFAULT_URL}]")
    config = click.option(
        "--config",
        "config_path",
        type=click.Path(path_type=Path),
        help="Take the gateway's address from this configuration.",
    )
    key = click.option("--key", envvar="REWARM_KEY", help="API key.  [env: REWARM_KEY]")
    return url(config(key(command)))


@dataclass(frozen=True, slots=True)
class Gateway:
    """``token`` is the secret of this machine's gateways, which its owner's command line can read without a key."""

    url: str
    key: str | None = None
    token: str | None = None

    @classmethod
    def find(cls, url: str | None, config_path: Path | None, key: str | None) -> Gateway:
        config = load(config_path) if config_path is not None else Config()
        if url is None:
            url = base_url(config) if config_path is not None else DEFAULT_URL
        elif "//" not in url:
            url = f"http://{url}"
        return cls(url.rstrip("/"), key, _token(config, url))

    def status(self) -> dict[str, Any]:
        """Raise NothingRunning or CommandRefused."""
        return self._call("GET", "/rewarm/v1/status")

    def command(self, kind: str, target: str) -> dict[str, Any]:
        return self._call("POST", "/rewarm/v1/commands", {"kind": kind, "target": target})

    def get(self, path: str) -> dict[str, Any]:
        """A JSON object. Raise NothingRunning or CommandRefused."""
        return self._call("GET", path)

    def post(self, path: str) -> dict[str, Any]:
        return self._call("POST", path, {})

    def read(self, path: str) -> tuple[int, bytes]:
        """Status and body of whatever is answered. Raise NothingRunning."""
        try:
            with self._open("GET", path) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except (OSError, HTTPException) as error:
            raise self._silent(error) from error

    def follow(self, path: str, last_id: str | None, silence_s: float) -> Iterator[bytes]:
        """The lines of an event stream, as they come. Raise OSError or HTTPException where it breaks, HTTPError where
        it is refused."""
        headers = {"Accept": "text/event-stream"}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        with self._open("GET", path, headers=headers, timeout_s=silence_s) as response:
            yield from response

    def _open(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> HTTPResponse:
        if not self.url.startswith(("http://", "https://")):
            raise click.BadParameter("write http://host:port", param_hint="--url")
        headers = {"Content-Type": "application/json", "Accept": "application/json", **(headers or {})}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        if self.token:
            headers[TOKEN_HEADER] = self.token
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310 -- http only, above
        response: HTTPResponse = urllib.request.urlopen(request, timeout=timeout_s)  # noqa: S310 -- http only, above
        return response

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            with self._open(method, path, body) as response:
                return _json(response.read())
        except urllib.error.HTTPError as error:
            with error:
                raise refused(error) from error
        except (OSError, HTTPException) as error:
            raise self._silent(error) from error

    def _silent(self, error: Exception) -> NothingRunning:
        return NothingRunning(f"no gateway answers at {self.url}: {getattr(error, 'reason', error)}")


def _token(config: Config, url: str) -> str | None:
    """Only ever sent to this machine."""
    if urlsplit(url).hostname not in ("127.0.0.1", "::1", "localhost"):
        return None
    try:
        return (paths_of(config).run / TOKEN_FILE).read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def refused(error: urllib.error.HTTPError) -> CommandRefused | NothingRunning:
    said = _json(error.read()).get("error")
    if isinstance(said, dict) and "message" in said:
        return CommandRefused(f"{said['message']} ({said.get('code')})")
    return NothingRunning(f"{error.url} answers {error.code}, which is no gateway of rewarm")


def _json(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
