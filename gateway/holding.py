"""How many requests may wait, how large, and for how long: policy over numbers, no sockets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from gateway.keys import Caller
from gateway.wire import Timings
from rewarm.config import GatewayConfig, HoldingConfig
from rewarm.errors import InvalidHeader, QueueFull
from rewarm.units import parse_duration

ProgressMode = Literal["comments", "chunks", "none"]
_MODES = ("comments", "chunks", "none")

MARGIN_S = 2.0
"""Our typed answer must arrive before the client's own timeout: this much earlier, or a tenth where that is less."""


class Holding:
    """Bounds on what this gateway keeps in memory, by count and by bytes, for one model and in all."""

    def __init__(self, config: HoldingConfig) -> None:
        self.config = config
        self.count = 0
        self.bytes = 0  # bodies in memory, waiting or not
        self._of_model: dict[str, tuple[int, int]] = {}

    def read(self, size: int) -> None:
        """Account for a body before it is read. Raise QueueFull; otherwise :meth:`forget` must follow."""
        if self.bytes + size > self.config.max_bytes:
            raise QueueFull(f"the bodies in this gateway come to {self.config.max_bytes} bytes, all that it may hold")
        self.bytes += size

    def forget(self, size: int) -> None:
        self.bytes -= size

    def admit(self, model: str, size: int, max_waiting: int) -> None:
        """Let one more request wait. Raise QueueFull; otherwise :meth:`release` must follow."""
        config = self.config
        count, held = self._of_model.get(model, (0, 0))
        if self.count >= config.max_requests:
            raise QueueFull(f"{self.count} requests wait in this gateway, as many as it may hold")
        if count >= max_waiting:
            raise QueueFull(f"{count} requests wait for {model!r}, as many as may")
        if held + size > config.max_bytes_per_model:
            raise QueueFull(f"the requests that wait for {model!r} come to {held} bytes, as much as they may")
        self.count += 1
        self._of_model[model] = (count + 1, held + size)

    def release(self, model: str, size: int) -> None:
        self.count -= 1
        count, held = self._of_model[model]
        if count == 1:
            del self._of_model[model]
        else:
            self._of_model[model] = (count - 1, held - size)

    def of_model(self, model: str) -> int:
        return self._of_model.get(model, (0, 0))[0]

    def models(self) -> dict[str, int]:
        return {model: count for model, (count, _) in self._of_model.items()}


def patience_s(headers: Mapping[str, str], config: HoldingConfig) -> float:
    """Seconds a request may wait for its model: what it asks for, else what its client's timeout allows, else ours.

    ``X-Rewarm-Max-Wait`` is a duration ("30s", "5m", 45); 0 means not at all. The openai clients announce their own
    timeout in seconds (``x-stainless-read-timeout``, ``x-stainless-timeout``). Raise InvalidHeader.
    """
    limit = config.max_patience.total_seconds()
    asked = headers.get("X-Rewarm-Max-Wait")
    if asked is not None:
        try:
            return min(parse_duration(asked).total_seconds(), limit)
        except (ValueError, OverflowError) as error:
            raise InvalidHeader(f"X-Rewarm-Max-Wait: {error}", param="X-Rewarm-Max-Wait") from error
    timeouts = [
        value
        for name in ("x-stainless-read-timeout", "x-stainless-timeout")
        if (value := _seconds(headers.get(name))) is not None
    ]
    if timeouts:
        timeout = min(timeouts)
        return min(timeout - min(MARGIN_S, timeout / 10), limit)
    return min(config.patience.total_seconds(), limit)


def _seconds(text: str | None) -> float | None:
    """A client library's own header: what we cannot read is as if it were not there."""
    try:
        value = float(text) if text else 0.0
    except ValueError:
        return None
    return value if 0 < value < 1e7 else None


def progress_mode(headers: Mapping[str, str], caller: Caller, config: GatewayConfig) -> ProgressMode:
    """Raise InvalidHeader for a mode that does not exist."""
    asked = headers.get("X-Rewarm-Progress")
    if asked is None:
        return caller.progress or config.progress
    mode = asked.strip().lower()
    if mode not in _MODES:
        raise InvalidHeader(f"X-Rewarm-Progress: {asked!r} is none of {', '.join(_MODES)}", param="X-Rewarm-Progress")
    return cast(ProgressMode, mode)


def timings(config: HoldingConfig) -> Timings:
    return Timings(
        stream_status_after_s=config.stream_status_after.total_seconds(),
        comment_every_s=config.comment_every.total_seconds(),
        chunk_first_after_s=config.chunk_first_after.total_seconds(),
        chunk_every_s=config.chunk_every.total_seconds(),
        plain_status_after_s=config.plain_status_after.total_seconds(),
        pad_every_s=config.pad_every.total_seconds(),
    )
