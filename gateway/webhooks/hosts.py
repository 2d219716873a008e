"""Room for each receiver: how many deliveries a host may have under way, and whether it is worth trying. Pure.

Deliveries beyond the bound are put off without spending a try. So are those to a host that keeps failing, but for one
at a time that finds out whether it is back: ten thousand jobs for a dead host neither keep others waiting nor use up
their tries meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

DOWN_AFTER = 5
"""Failures in a row that make a host count as down."""

FIRST_DOWN_S = 2.0
MAX_DOWN_S = 60.0
MIN_WAIT_S = 0.25
FORGET_AFTER_S = 3600.0
_SMOOTHING = 0.2


@dataclass(slots=True)
class _Host:
    running: int = 0
    waiting: int = 0  # put off since it last had nothing to do
    mean_s: float = 0.1  # a delivery takes
    failures: int = 0  # in a row
    until: float = 0.0  # not tried before, where it is down
    used: float = 0.0


class Hosts:
    """``now`` is monotonic seconds."""

    def __init__(self, per_host: int) -> None:
        self._per_host = per_host
        self._hosts: dict[str, _Host] = {}

    def admit(self, name: str, now: float) -> float | None:
        """None: go on, and say :meth:`ended`. Else seconds until it is worth asking again."""
        host = self._hosts.setdefault(name, _Host())
        host.used = now
        down = host.failures >= DOWN_AFTER
        if down and host.until > now:
            return host.until - now
        if host.running < (1 if down else self._per_host):
            host.running += 1
            host.waiting = max(0, host.waiting - 1)
            return None
        # As far back as the queue is long: a thousand that wait for one host must not be looked at every moment.
        host.waiting += 1
        return min(max(host.waiting * host.mean_s / self._per_host, MIN_WAIT_S), MAX_DOWN_S)

    def ended(self, name: str, now: float, took_s: float, *, well: bool) -> None:
        """``well``: it answered, whatever it said to this delivery."""
        host = self._hosts[name]
        host.running -= 1
        host.used = now
        host.mean_s += _SMOOTHING * (took_s - host.mean_s)
        if not host.running:
            host.waiting = 0
        if well:
            host.failures = 0
            return
        host.failures += 1
        if host.failures >= DOWN_AFTER:
            host.until = now + min(FIRST_DOWN_S * 2 ** min(host.failures - DOWN_AFTER, 10), MAX_DOWN_S)

    def prune(self, now: float) -> None:
        for name, host in list(self._hosts.items()):
            if not host.running and now - host.used > FORGET_AFTER_S:
                del self._hosts[name]

    def __len__(self) -> int:
        return len(self._hosts)
