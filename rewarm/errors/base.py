"""The base of all typed errors: how one looks in a response."""

from __future__ import annotations

from typing import Any, ClassVar


class RewarmError(Exception):
    """Base of all typed errors. ``extra`` is merged into the JSON body beside ``error`` (for example ``loading``)."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    retry_after_s: ClassVar[int | None] = None
    should_retry: ClassVar[bool | None] = None
    advice: ClassVar[str] = "This is a bug in rewarm: please report it with the log around this request."

    def __init__(self, message: str, *, param: str | None = None, extra: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.extra = extra or {}

    def body(self) -> dict[str, Any]:
        """The JSON body of the response: OpenAI's error envelope, ``error`` as the first key."""
        return {"error": self.payload(), **self.extra}

    def payload(self) -> dict[str, Any]:
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def headers(self) -> dict[str, str]:
        out: dict[str, str] = {}
        if self.retry_after_s is not None:
            out["Retry-After"] = str(self.retry_after_s)
        if self.should_retry is not None:
            out["x-should-retry"] = "true" if self.should_retry else "false"
        return out
