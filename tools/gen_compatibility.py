"""Put what `make test-frameworks` saw into docs/compatibility.md: which feature of which client ran in which way.

    tools/gen_compatibility.py [RESULTS...]

RESULTS are files that the tests wrote, build/frameworks/*.json where none are named. What is between the two marks in
the page is replaced; the rest of the page is written by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- tools/gen_compatibility.py writes from here -->", "<!-- to here -->"
WAYS = ("alone", "substitute", "library-path", "preload", "neighbour")


def merged(paths: Sequence[Path]) -> dict[str, Any]:
    """Every client with the ways that any file has of it; a way that two files have is that of the last run."""
    clients: dict[str, Any] = {}
    for path in paths:
        for name, seen in json.loads(path.read_text())["clients"].items():
            client = clients.setdefault(name, {"versions": {}, "ways": {}})
            client["versions"] |= seen["versions"]
            for way, run in seen["ways"].items():
                if run["date"] >= client["ways"].get(way, run)["date"]:
                    client["ways"][way] = run
    return clients


def cell(line: Mapping[str, Any] | None, way: str, notes: list[str]) -> str:
    """A feature in one way: what it came to, and its launches where the gate let all of them through."""
    if line is None:
        return ""
    if line["error"]:
        first, *_, last = [*line["error"].strip().splitlines()] * 2
        kind = first.partition(":")[0]
        text = " ".join((last if last.startswith(kind) else f"{kind}: {last}").replace("|", "/").split())
        if text not in notes:
            notes.append(text)
        return f"no ({notes.index(text) + 1})"
    if way != "alone" and line["emulator"] > line["gate"]:
        return f"yes, {line['gate']} of {line['emulator']} gated"
    return f"yes, {line['emulator']}" if line["emulator"] else "yes"


def table(name: str, client: Mapping[str, Any]) -> Iterator[str]:
    """One client's part of the page."""
    versions = ", ".join(f"{what} {version}" for what, version in client["versions"].items() if what != "GPU")
    yield f"### {name}"
    yield ""
    yield f"{versions}; emulated {client['versions'].get('GPU', 'h100')}."
    yield ""
    ways = [way for way in WAYS if way in client["ways"]]
    runs = {way: client["ways"][way]["features"] for way in ways}
    yield "| feature | " + " | ".join(ways) + " |"
    yield "|---" * (len(ways) + 1) + "|"
    notes: list[str] = []
    for feature in sorted(dict.fromkeys(feature for run in runs.values() for feature in run)):
        cells = [cell(runs[way].get(feature), way, notes) for way in ways]
        yield f"| {feature.replace('_', ' ')} | " + " | ".join(cells) + " |"
    yield "| seen on | " + " | ".join(client["ways"][way]["date"] for way in ways) + " |"
    yield ""
    for number, note in enumerate(notes, 1):
        yield f"({number}) `{note[:300]}`"
        yield ""


def main() -> int:
    """Write the page; status 1 where there is nothing to write."""
    paths = [Path(path) for path in sys.argv[1:]] or sorted((ROOT / "build" / "frameworks").glob("*.json"))
    if not paths:
        print("gen_compatibility: nothing was seen yet; run make test-frameworks", file=sys.stderr)
        return 1
    clients = merged(paths)
    lines: list[str] = []
    for name in sorted(clients):
        lines += table(name, clients[name])
    page = PAGE.read_text()
    head, rest = page.split(BEGIN)
    PAGE.write_text(head + BEGIN + "\n\n" + "\n".join(lines) + END + rest.split(END)[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
