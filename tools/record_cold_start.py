"""Record a cold start as a client sees it, into docs/images/cold-start.svg.

    make serve                                   # in one terminal, the model at zero
    python tools/record_cold_start.py            # in another

Sends one streaming chat request as curl would and keeps every line with the second it came at. The picture is what was
received, each line shortened to the width; nothing is edited.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
from pathlib import Path

from rich.console import Console
from rich.text import Text

BODY = {
    "model": "smollm2",
    "stream": True,
    "temperature": 0,
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
}


def record(url: str) -> list[tuple[float, str]]:
    """(seconds since the request, line) of everything the client received."""
    request = urllib.request.Request(  # noqa: S310 -- the address comes from the person at the keyboard
        f"{url}/v1/chat/completions", json.dumps(BODY).encode(), {"Content-Type": "application/json"}
    )
    begin = time.monotonic()
    lines = []
    with urllib.request.urlopen(request) as answer:  # noqa: S310 -- see above
        for raw in answer:
            line = raw.decode().rstrip("\n")
            if line:
                lines.append((time.monotonic() - begin, line))
    return lines


def draw(lines: list[tuple[float, str]], width: int) -> Console:
    console = Console(record=True, width=width, force_terminal=True)
    command = "curl -N :8080/v1/chat/completions -H 'Content-Type: application/json' -d '{\"model\": \"smollm2\", …}'"
    console.print(Text(f"$ {command}", "bold"), no_wrap=True)
    for at, line in lines:
        style = "yellow" if line.startswith(":") else "green" if '"rewarm"' not in line else "cyan"
        console.print(Text(f"{at:6.2f} s  ", "dim"), Text(_fitted(line, width - 10), style), sep="", no_wrap=True)
    return console


def _fitted(line: str, room: int) -> str:
    """A chunk is shown from its delta on: what comes before is the same in each of them."""
    start = line.find('"delta"')
    if len(line) > room and start > 0:
        line = f"data: {{… {line[start:]}"
    return line if len(line) <= room else line[: room - 1] + "…"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--out", type=Path, default=Path("docs/images/cold-start.svg"))
    parser.add_argument("--width", type=int, default=118)
    args = parser.parse_args()
    console = draw(record(args.url), args.width)
    args.out.write_text(console.export_svg(title="rewarm: a request to a model at zero"))


if __name__ == "__main__":
    main()
