"""What a webhook says. Pure; the same bytes at every try.

A receiver learns that something happened and where to read it, not the result itself: that is read with the key.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fleet import Delivery
from rewarm.jobs import Job

_dump = msgspec.json.Encoder().encode


def message_id(delivery: Delivery) -> str:
    """The same at every try, so that a receiver can tell a repeat."""
    return f"msg_{delivery.job}_{delivery.seq}"


def payload(delivery: Delivery, job: Job, public_url: str | None) -> bytes:
    """``{id, object, type, created_at, data}``; times in seconds since the epoch."""
    base = f"{(public_url or '').rstrip('/')}/v1/jobs/{job.spec.id}"
    data: dict[str, Any] = {
        "id": job.spec.id,
        "status": delivery.event,
        "model": job.spec.asked_model,
        "metadata": job.spec.metadata,
        "status_url": base,
        "events_url": f"{base}/events",
        "result_url": f"{base}/result",
    }
    if delivery.event == job.state and job.error_code is not None:
        data["error"] = {"code": job.error_code, "message": job.error_message}
    return _dump(
        {
            "id": message_id(delivery),
            "object": "event",
            "type": f"job.{delivery.event}",
            "created_at": delivery.created_ms // 1000,
            "data": data,
        }
    )
