"""The one place where a webhook touches the network: names are looked up, addresses judged, a request sent.

An address is judged where its socket is made, for every connection anew. Judging the name's addresses beforehand would
not do: whoever owns the name may answer with another address a moment later, and ``http://127.1/`` never is a name at
all. aiohttp calls our ``socket_factory`` with the very address that it then connects to.

Nothing is shared between deliveries, neither connections nor cookies nor a proxy from the environment.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.webhooks.addresses import Allowed, refusal
from gateway.webhooks.schedule import Answer
from gateway.webhooks.target import Target

_log = logging.getLogger("rewarm.gateway.webhooks")

_THREADS = 8
_HEAD_BYTES = 8190
_ERROR_CHARS = 200

Lookup = Callable[..., list[tuple[Any, ...]]]
"""As :func:`socket.getaddrinfo`."""


class AddressRefused(OSError):
    """This delivery must not go to that address. The message says what kind it is and not which: the client who reads
    it must not learn what names mean inside the operator's network."""


class Names(AbstractResolver):
    """The system's resolver, in threads of its own: a name server that does not answer holds up webhooks only, and a
    name is looked up once at a time, so that one such name does not take all threads."""

    def __init__(self, lookup: Lookup = socket.getaddrinfo) -> None:
        self._lookup = lookup
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="webhook-names")
        self._under_way: dict[tuple[str, int, int], asyncio.Future[list[ResolveResult]]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raise OSError."""
        key = (host, port, int(family))
        found = self._under_way.get(key)
        if found is None:
            loop = asyncio.get_running_loop()
            found = loop.run_in_executor(self._threads, self._resolve, *key)
            self._under_way[key] = found
            found.add_done_callback(functools.partial(self._end, key))
        return await asyncio.shield(found)

    def _end(self, key: tuple[str, int, int], found: asyncio.Future[list[ResolveResult]]) -> None:
        del self._under_way[key]
        if not found.cancelled():
            found.exception()  # seen, even where whoever asked has gone

    def _resolve(self, host: str, port: int, family: int) -> list[ResolveResult]:
        infos = self._lookup(host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        return [
            ResolveResult(
                hostname=host,
                host=info[4][0] if not (info[0] == socket.AF_INET6 and info[4][3]) else f"{info[4][0]}%{info[4][3]}",
                port=port,
                family=info[0],
                proto=info[2],
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for info in infos
            if len(info[4]) >= (4 if info[0] == socket.AF_INET6 else 2)
        ]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class Sender:
    def __init__(self, allowed: Allowed, timeout_s: float, names: Names | None = None) -> None:
        self._allowed = allowed
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._names = names or Names()

    async def judge(self, target: Target) -> str | None:
        """Why nothing may be sent there, as far as its name says now. A name that cannot be looked up at the moment
        passes: each delivery judges again."""
        try:
            async with asyncio.timeout(self._timeout.total):
                found = await self._names.resolve(target.host, target.port)
        except socket.gaierror as error:
            return None if error.errno == socket.EAI_AGAIN else f"the host {target.host} does not exist"
        except (OSError, UnicodeError):
            return f"the host {target.host} cannot be looked up"
        except TimeoutError:
            return None
        for address in found:
            why = refusal(address["host"], target.host, self._allowed)
            if why is not None:
                _log.info("webhook refused target=%s address=%s", target.name, address["host"])
                return f"the host {target.host} is {why}"
        return None if found else f"the host {target.host} has no address"

    async def post(self, target: Target, headers: dict[str, str], body: bytes) -> Answer:
        """One try. Only the answer's head is read; 3xx are not followed."""
        connector = aiohttp.TCPConnector(
            resolver=self._names,
            use_dns_cache=False,
            force_close=True,
            socket_factory=functools.partial(self._socket, target),
        )
        try:
            async with aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=self._timeout,
                trust_env=False,
                auto_decompress=False,
                max_line_size=_HEAD_BYTES,
                max_field_size=_HEAD_BYTES,
            ) as http:
                async with http.post(target.url, data=body, headers=headers, allow_redirects=False) as answer:
                    return Answer(answer.status, retry_after=answer.headers.get("Retry-After"))
        except TimeoutError:
            return Answer(None, f"no answer within {self._timeout.total:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(None, _words(error))

    async def close(self) -> None:
        await self._names.close()

    def _socket(self, target: Target, info: Any) -> socket.socket:
        family, kind, protocol, _, address = info
        why = refusal(address[0], target.host, self._allowed)
        if why is not None:
            _log.warning("webhook refused at connect target=%s address=%s", target.name, address[0])
            raise AddressRefused(errno.EACCES, f"the host {target.host} is {why}")
        return socket.socket(family, kind, protocol)


def _words(error: Exception) -> str:
    cause: BaseException | None = error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the host cannot be looked up"
    elif isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
    if isinstance(cause, AddressRefused):
        text = str(cause.strerror)
    elif isinstance(cause, ssl.SSLCertVerificationError):
        text = f"the certificate is not accepted: {cause.verify_message}"
    elif isinstance(cause, ssl.SSLError):
        text = f"no TLS connection: {cause.reason}"
    elif isinstance(cause, OSError) and (cause.errno or 0) > 0:
        text = os.strerror(cause.errno or 0)  # asyncio's own words name the address
    else:
        text = f"{type(error).__name__}: {cause}"
    return " ".join(text.split())[:_ERROR_CHARS]
