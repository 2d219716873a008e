"""Where a reader of a job's events is: the ids of the SSE stream, ``<attempt>-<seq>[.<given>]-<tag>``.

``<attempt>-<seq>`` names a chunk in Redis. A chunk holds several of the engine's events, each of which is sent as an
event of its own: ``given`` says how many of them were, so that a cut inside a chunk loses and doubles nothing. ``tag``
is a digest of the job's id: an id from another job's stream is told from our own.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from rewarm.errors import ForeignEventId
from rewarm.jobs import Job

_ID = re.compile(r"^(\d{1,9})-(\d{1,12})(?:\.(\d{1,6}))?(?:-([0-9a-f]{8}))?$", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """The last event that the reader has: of the chunk ``seq`` of ``attempt``, the first ``given`` events, or all (0).

    ``seq`` 0: nothing of the attempt but its beginning.
    """

    attempt: int = 0
    seq: int = 0
    given: int = 0

    @property
    def after(self) -> str:
        """The chunk in Redis after which to read on: one half given is read again, and its first events are skipped."""
        return f"{self.attempt}-{self.seq - 1 if self.given else self.seq}"

    def event_id(self, tag: str) -> str:
        part = f".{self.given}" if self.given else ""
        return f"{self.attempt}-{self.seq}{part}-{tag}"


def tag_of(job: str) -> str:
    return hashlib.sha256(job.encode()).hexdigest()[:8]


def read_cursor(text: str | None, job: Job, *, bare: bool = False) -> Cursor:
    """From ``Last-Event-ID`` or ``after``. Raise ForeignEventId.

    ``bare``: an id without a tag will do. Nothing in one tells of which job it is, so that a header, which clients fill
    in by themselves, must have it. Whether the attempt has such a chunk is not judged here: its output says that.
    """
    if not text:
        return Cursor()
    match = _ID.match(text.strip())
    foreign = ForeignEventId(f"{text!r} is no id from the events of {job.spec.id}", param="Last-Event-ID")
    if match is None:
        raise foreign
    cursor, tag = Cursor(int(match[1]), int(match[2]), int(match[3] or 0)), match[4]
    if cursor.given and not cursor.seq:
        raise foreign
    if cursor.attempt > job.attempt:
        raise foreign
    if not (bare if tag is None else tag == tag_of(job.spec.id)):
        raise foreign
    return cursor


def split_events(data: bytes) -> list[bytes]:
    """The whole SSE events of a chunk, each without the blank line that ends it."""
    return [event for event in data.replace(b"\r\n", b"\n").split(b"\n\n") if event]
