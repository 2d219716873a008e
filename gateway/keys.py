"""Who asks: API keys by their SHA-256, with tenant, band, weight and a bound on requests at once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from gateway.limits import KeyLimits
from rewarm.config import BANDS, KeyConfig, Priority
from rewarm.errors import InvalidApiKey, ModelNotAllowed, RateLimitExceeded
from rewarm.messages import CatalogueEntry

ANYONE = "default"
"""The tenant of everybody where no keys are configured."""

_MAX_SEEN = 4096


class Caller:
    """One key, and how many of its requests are here now (running and waiting together)."""

    __slots__ = (
        "active",
        "band",
        "concurrency",
        "job_priority",
        "limits",
        "models",
        "operator",
        "priority",
        "progress",
        "tenant",
        "weight",
    )

    def __init__(self, key: KeyConfig | None) -> None:
        self.active = 0
        self.limits = KeyLimits(key.name if key else ANYONE)
        self.configure(key)

    def configure(self, key: KeyConfig | None) -> None:
        self.tenant = key.name if key else ANYONE
        self.priority: Priority = key.priority if key else "normal"
        self.band = BANDS[self.priority]
        self.job_priority: Priority = key.job_priority if key else "high"
        self.weight = key.weight if key else 1.0
        self.concurrency = key.concurrency if key else None
        self.models = frozenset(key.models) if key and key.models is not None else None
        self.progress = key.progress if key else None
        self.operator = key.operator if key else False
        self.limits.configure(key)

    def may_use(self, entry: CatalogueEntry) -> bool:
        return self.models is None or not self.models.isdisjoint(entry.spec.served_names)

    def check(self, entry: CatalogueEntry, model: str) -> None:
        """Raise ModelNotAllowed. ``model`` is the name the client used, for the message."""
        if self.models is not None and not self.may_use(entry):
            raise ModelNotAllowed(f"the key {self.tenant!r} may not use the model {model!r}", param="model")

    def enter(self) -> None:
        """Raise RateLimitExceeded; otherwise :meth:`leave` must follow."""
        if self.concurrency is not None and self.active >= self.concurrency:
            raise RateLimitExceeded(
                f"the key {self.tenant!r} has {self.active} requests running or waiting, as many as it may"
            )
        self.active += 1

    def leave(self) -> None:
        self.active -= 1


class Keyring:
    def __init__(self, keys: Sequence[KeyConfig]) -> None:
        self._anyone: Caller | None = None
        self._by_digest: dict[bytes, Caller] = {}
        self._seen: dict[str, Caller] = {}  # Authorization headers that were right: hashed once, not every time
        self.configure(keys)

    def configure(self, keys: Sequence[KeyConfig]) -> None:
        """A key that is gone is unknown from now on; requests that run or wait under it go on, and still count against
        a tenant that stays."""
        before = {caller.tenant: caller for caller in self._by_digest.values()}
        self._anyone = (self._anyone or Caller(None)) if not keys else None
        self._by_digest = {}
        for key in keys:
            caller = before.get(key.name) or Caller(key)
            caller.configure(key)
            self._by_digest[bytes.fromhex(key.sha256)] = caller
        self._seen.clear()

    def limits(self) -> Iterable[KeyLimits]:
        return [caller.limits for caller in self._by_digest.values()]

    def limits_of(self, tenant: str) -> KeyLimits | None:
        return next((limits for limits in self.limits() if limits.tenant == tenant), None)

    @property
    def open(self) -> bool:
        """No keys are configured: everybody who can connect is served, and the gateway listens on loopback only."""
        return self._anyone is not None

    def identify(self, headers: Mapping[str, str]) -> Caller:
        """Raise InvalidApiKey. The lookup is by digest, so its time tells nothing about a key."""
        if self._anyone is not None:
            return self._anyone
        text = headers.get("Authorization")
        if text is not None:
            known = self._seen.get(text)
            if known is not None:
                return known
            scheme, _, secret = text.partition(" ")
            if scheme.lower() != "bearer":
                raise InvalidApiKey("the Authorization header must be `Bearer <key>`")
        else:
            secret = headers.get("X-Api-Key") or headers.get("Api-Key") or ""
            if not secret:
                raise InvalidApiKey("no API key: send the header `Authorization: Bearer <key>`")
        caller = self._by_digest.get(hashlib.sha256(secret.strip().encode("utf-8", "surrogateescape")).digest())
        if caller is None:
            raise InvalidApiKey("this API key is not known here")
        if text is not None and len(self._seen) < _MAX_SEEN:
            self._seen[text] = caller
        return caller
