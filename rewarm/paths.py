"""Where things lie on this machine. One object, made from the configuration; ``rewarm paths`` prints it."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rewarm.errors import StateUnusable

SOCKET_PATH_LIMIT = 107
"""Bytes in ``sockaddr_un.sun_path`` less the terminating zero (Linux)."""

_LONGEST_SOCKET_NAME = 48  # "/" + replica id (24 + 1 + 8) + ".report", with room


def default_state_dir(fleet: str) -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "rewarm" / fleet


@dataclass(frozen=True, slots=True)
class Paths:
    """``state`` survives restarts (Redis data, logs); ``run`` holds sockets and is 0700."""

    state: Path
    run: Path

    @classmethod
    def at(cls, state: Path) -> Paths:
        """Sockets lie under the state folder where their paths are short enough, else in the temporary folder."""
        state = state.absolute()
        run = state / "run"
        if len(os.fsencode(run)) + _LONGEST_SOCKET_NAME > SOCKET_PATH_LIMIT:
            digest = hashlib.sha256(os.fsencode(state)).hexdigest()[:12]
            run = Path(tempfile.gettempdir()) / f"rewarm-{os.getuid()}-{digest}"
        return cls(state, run)

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def snapshots(self) -> Path:
        """The store of weight snapshots, unless the configuration names another folder."""
        return self.state / "snapshots"

    @property
    def redis(self) -> Path:
        """Data folder of the embedded Redis: append-only file, dump, configuration, log."""
        return self.state / "redis"

    @property
    def redis_socket(self) -> Path:
        return self.run / "redis.sock"

    def engine_log(self, model: str) -> Path:
        return self.logs / f"engine-{model.replace('/', '-')}.log"

    def make(self) -> None:
        """Create the folders. The run folder must be ours and closed to others: gates are reached through it.

        Raise StateUnusable.
        """
        try:
            for folder in (self.state, self.logs):
                folder.mkdir(parents=True, exist_ok=True)
            self.run.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.run.lstat()
            if stat.S_ISLNK(status.st_mode):  # in the temporary folder anybody may have put it there
                raise StateUnusable(f"{self.run} is a symbolic link")
            if status.st_uid != os.getuid():
                raise StateUnusable(f"{self.run} belongs to another user")
            self.run.chmod(0o700)
        except OSError as error:
            raise StateUnusable(str(error)) from error
