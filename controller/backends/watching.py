"""A watch is one request. lightkube's goes on for ever: where a server ends one in good order it opens the next at
once. Where a server, or a proxy before it, ends every watch as it begins, that is a request after the other without a
pause, of which its caller never hears. So the transport below says when the answer to a watch is over."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import SingleConfig


class WatchEnded(Exception):
    """The API server has ended a watch, without an error. No error of httpx's: lightkube would count it as one."""


class OneRequestEach(httpx2.AsyncBaseTransport):
    """Raises :class:`WatchEnded` to whoever reads the body of a watch, at its end. Everything else passes."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    @classmethod
    def to(cls, config: SingleConfig) -> OneRequestEach:
        """With the certificates that ``config`` names, as lightkube itself would have it."""
        assert config.user is not None  # lightkube's KubeConfig.get sees to it
        verify = verify_cluster(config.cluster, config.user, config.abs_file, trust_env=False)
        return cls(httpx2.AsyncHTTPTransport(verify=verify))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        if request.url.params.get("watch") == "true" and response.status_code == httpx2.codes.OK:
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Ending(response.stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Ending(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            yield chunk
        raise WatchEnded

    async def aclose(self) -> None:
        await self._inner.aclose()
