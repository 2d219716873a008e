"""`rewarm serve` with models at zero, and wakes of them."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks._http import get, post
from benchmarks._processes import Program, free_port, running, wait_for_port
from benchmarks._stats import median
from benchmarks._stream import Stream, ask
from snapshots import Store

WARM = 3  # requests to the engine that is awake
_CAPTURES = 5  # loads until the snapshot must be there
_CAPTURE_WITHIN_S = 300.0  # a second load and its writing, with nothing else to do


@dataclass(frozen=True)
class Wake:
    """``stream`` is what a request got that found its model at zero, ``warm_s`` the first token when it was awake."""

    stream: Stream
    warm_s: float
    tier: str
    tier_reason: str
    weights: str
    phases: dict[str, float]
    eta_error: float | None  # at half-way, by the agent's own account: see rewarm.messages.Wake


@dataclass(frozen=True)
class Serve:
    """``store`` is where its snapshots lie. ``prepares``: its pool prepares models."""

    program: Program
    port: int
    store: Path
    prepares: bool = True

    def wake(self, model: str) -> Wake:
        """One cold request. The model stays awake."""
        if self.replicas(model):
            raise RuntimeError(f"{model} is not at zero")
        stream = ask(self.port, model)
        self.until(lambda: bool(self.replicas(model, "ready")), "the replica reports its phases")
        replica = self.replicas(model, "ready")[0]
        return Wake(
            stream,
            self.warm_s(model),
            replica["tier"],
            replica["tier_reason"],
            replica["weights"],
            {timing["phase"]: timing["duration_s"] for timing in replica["timings"]},
            replica["eta_error"],
        )

    def wake_from_sleep(self, model: str) -> Stream:
        """Of a model that is awake: it is put to sleep, and asked."""
        self.until(lambda: self.replicas(model)[0]["can_sleep"], "it can sleep")
        self.command("sleep", model)
        self.until(lambda: bool(self.replicas(model, "asleep")), "it sleeps")
        return ask(self.port, model)

    def warm_s(self, model: str) -> float:
        return median([ask(self.port, model).first_token_s for _ in range(WARM)])

    def stop(self, model: str) -> None:
        """Back to zero: its processes are gone."""
        self.command("drain", model)
        self.until(lambda: not self.replicas(model), f"{model} is gone")

    def pack(self, model: str) -> None:
        """The first load makes the snapshot, once it has answered."""
        for _ in range(_CAPTURES):
            ask(self.port, model)
            self.until(lambda: bool(self.replicas(model, "ready")), "the replica is ready")
            mapped = self.replicas(model, "ready")[0]["weights"].startswith(("packed", "portable"))
            if not mapped:
                self.until(lambda: self._captured(model), f"a snapshot of {model} is made", _CAPTURE_WITHIN_S)
            self.stop(model)
            if mapped:
                return
        raise RuntimeError(f"no snapshot came of {model}")

    def _captured(self, model: str) -> bool:
        store = Store(self.store, read_only=True)
        return any(entry.model == model and not entry.quarantined for entry in store.list())

    def settle(self) -> None:
        """Every model that can be forked has a process ready, and the machine is quiet again."""
        self.until(self._filled, "the pool is filled")
        time.sleep(0.5)

    def command(self, kind: str, target: str) -> None:
        post(self.port, "/rewarm/v1/commands", {"kind": kind, "target": target})

    def replicas(self, model: str, state: str = "") -> list[dict[str, Any]]:
        found = [r for w in self._workers() for r in w["replicas"] if r["model"] == model and r["state"] != "stopped"]
        return [r for r in found if not state or r["state"] == state]

    def pools(self) -> list[dict[str, Any]]:
        return [pool for worker in self._workers() for pool in worker["pools"]]

    def until(self, condition: Callable[[], bool], what: str, within_s: float = 180.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            self.program.alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {within_s:.0f} s: {what}\n{self.program.tail()}")
            time.sleep(0.02)

    def _workers(self) -> list[dict[str, Any]]:
        workers: list[dict[str, Any]] = get(self.port, "/rewarm/v1/status")["workers"]
        return workers

    def _filled(self) -> bool:
        pools = self.pools()
        for pool in pools:
            suitable = [entry for entry in pool["prepared"] if entry["state"] != "unsuitable"]
            if suitable and pool["state"] != "ready":
                return False
            if any(entry["state"] == "ready" and not entry["ready"] for entry in suitable):
                return False
            if self.prepares and any(entry["state"] == "waiting" for entry in suitable):
                return False
        return bool(pools)


@contextlib.contextmanager
def serving(
    name: str, folder: Path, models: Mapping[str, Mapping[str, Any]], *, tmp: Path | None = None, **more: Any
) -> Iterator[Serve]:
    """``more``: further sections of the configuration. ``tmp``: its folder for temporary files."""
    port = free_port()
    data = {
        "fleet": name,
        "state_dir": str(folder / f"state-{name}"),
        "gateway": {"listen": f"127.0.0.1:{port}"},
        "models": {model: dict(fields) for model, fields in models.items()},
        **more,
    }
    store = Path(more.get("snapshots", {}).get("dir") or folder / f"state-{name}" / "snapshots")
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump(data))
    env = {} if tmp is None else {"TMPDIR": str(tmp)}
    with running(name, [sys.executable, "-m", "rewarm", "serve", str(config)], folder, env=env) as program:
        wait_for_port(program, port)
        serve = Serve(program, port, store, more.get("pool", {}).get("models", 1) > 0)
        serve.until(lambda: bool(get(port, "/rewarm/v1/status")["workers"]), "a worker reports")
        yield serve
