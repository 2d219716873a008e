"""Who wants to know how a load goes. vLLM makes the loader itself, so an observer cannot be handed to it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a model was loaded from. ``tier``: "packed", "sharded", "portable" or "source"."""

    tier: str
    snapshot_id: str | None = None
    store: str = ""  # the store's root, where there is a snapshot
    reasons: tuple[str, ...] = ()  # why nothing better was taken, a line each
    seconds: float = 0.0

    @property
    def words(self) -> str:
        """ "packed smollm2@packed-0123456789abcdef" or "source"."""
        return self.tier if self.snapshot_id is None else f"{self.tier} {self.snapshot_id}"


class Observer:
    """Hears nothing. Called from the loading thread, and for bytes from reading threads."""

    def reading(self, what: str) -> None:
        """Weights are going to be read; :meth:`bytes` follows."""

    def bytes(self, done: int, total: int) -> None: ...

    def preparing(self, what: str) -> None:
        """All bytes are there: the engine makes of them what its kernels want."""

    def loaded(self, loaded: Loaded) -> None: ...


_observer = Observer()


def use_observer(observer: Observer) -> None:
    """For the loads of this process from now on."""
    global _observer  # one model a process
    _observer = observer


def observer() -> Observer:
    return _observer
