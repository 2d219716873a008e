"""Writes docs/errors.md from rewarm/errors/ and rewarm/states.py:  python -m tools.errors_doc [--check]

``--check`` writes nothing and exits with 1 if the file is not what the code says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from rewarm.errors import OperatorError, RewarmError, catalogue
from rewarm.states import MEANINGS, PERMANENT, FailureReason

TARGET = Path(__file__).resolve().parents[1] / "docs" / "errors.md"

_HEAD = """\
# Errors

<!-- Written by tools/errors_doc.py from rewarm/errors/. Change it there, then run: make errors-doc -->

Every error has a code that never changes. It stands in the HTTP body, in the log and on the command line.

## Over HTTP

```json
{"error": {"message": "…", "type": "…", "param": null, "code": "model_loading"}}
```

`error` is the first key and has OpenAI's four fields. Some errors add an object beside it: `model_loading` adds \
`loading` (phase, fraction, seconds to go, place in the queue), `model_load_failed` adds why.

*Status* applies until the response has begun. Later the status line is gone, and the same error arrives

- **on a stream** as a last `data: {"error": …}`, then `data: [DONE]`;
- **on a plain response that was kept alive with whitespace** as a broken connection, never as a 200 with an error in \
it: the client's retry then gets the status below.

*Retry* says what a client reads in the headers: `Retry-After` in seconds (never more than 8, because some clients \
sleep for whatever they are told), or `x-should-retry: false` where a second try cannot help.
"""

_OPERATOR_HEAD = """\
## On the command line

The process prints code, message and advice on standard error (`--json`: one object) and ends with this status.
"""


_REASONS_HEAD = """\
## Why a load failed

`reason` beside `model_load_failed`, in `rewarm ps` and in the log. `message` has the numbers.
"""


def render() -> str:
    errors = catalogue()
    # A command may be refused by the gateway, too: such an error stands in both tables.
    http = [e for e in errors if not issubclass(e, OperatorError) or "status" in vars(e)] + [RewarmError]
    operator = [error for error in errors if issubclass(error, OperatorError)]
    return "\n".join(
        (
            _HEAD,
            *_table(("Code", "Status", "Type", "Retry", "What it means, what to do"), map(_http_row, http)),
            "",
            _OPERATOR_HEAD,
            *_table(("Code", "Exit status", "What to do"), map(_operator_row, operator)),
            "",
            _REASONS_HEAD,
            *_table(("Reason", "Tried again", "What it means, what to do"), map(_reason_row, FailureReason)),
            "",
        )
    )


def _http_row(error: type[RewarmError]) -> tuple[str, ...]:
    return (f"`{error.code}`", str(error.status), f"`{error.type}`", _retry(error), error.advice)


def _reason_row(reason: FailureReason) -> tuple[str, ...]:
    return (f"`{reason.value}`", "no" if reason in PERMANENT else "yes", MEANINGS[reason])


def _operator_row(error: type[OperatorError]) -> tuple[str, ...]:
    return (f"`{error.code}`", str(error.exit_code), error.advice)


def _retry(error: type[RewarmError]) -> str:
    if error.retry_after_s is not None:
        return f"after {error.retry_after_s} s"
    return {None: "client's choice", False: "no", True: "yes"}[error.should_retry]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield _row(head)
    yield _row(("---",) * len(head))
    for row in rows:
        yield _row(row)


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.errors_doc", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the file is current")
    check = parser.parse_args(argv).check
    text = render()
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    if check:
        print(f"{TARGET} is not what rewarm/errors/ says: run make errors-doc", file=sys.stderr)
        return 1
    TARGET.write_text(text, encoding="utf-8")
    print(f"wrote {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
