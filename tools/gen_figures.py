"""Write bench/figures.toml as tables into bench/README.md; with --check say whether they are stale.

What is between the two marks of the page is replaced; the rest is written by hand.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from generated import ROOT, parser, settle

DATA = ROOT / "bench" / "figures.toml"
PAGE = ROOT / "bench" / "README.md"
BEGIN, END = "<!-- tools/gen_figures.py writes from here -->\n", "<!-- to here -->\n"
REQUIRED, OPTIONAL = {"what", "seen", "date"}, {"asked", "unit", "load", "command", "why"}
MAX_ROW = 250
"""Characters of a row: a table is for figures."""


def row(figure: dict[str, str], command: str) -> str:
    """One figure as a row, which names `command` unless that is empty.

    Raises:
        SystemExit: a field is missing, unknown or too long, or a reason is more than one sentence.
    """
    unit = f" {figure['unit']}" if "unit" in figure else ""
    asked = figure.get("asked", "-")
    what = figure["what"] + (f" (`{command}`)" if command else "")
    asked += unit if re.fullmatch(r"[-+ .\d;]*\d", asked) else ""
    day = figure["date"] + (f", load {figure['load']}" if "load" in figure else "")
    text = f"| {' | '.join([what, asked, figure['seen'] + unit, day, figure.get('why', '')]).rstrip()} |"
    fields = set(figure)
    if len(text) > MAX_ROW or not REQUIRED <= fields <= REQUIRED | OPTIONAL or ". " in figure.get("why", ""):
        sys.exit(
            f"{DATA.relative_to(ROOT)}: {figure['what']!r} is {len(text)} characters of {sorted(fields)}; a row has at "
            f"most {MAX_ROW}, of {sorted(REQUIRED)} and any of {sorted(OPTIONAL)}, and `why` is one sentence"
        )
    return text


def group_table(group: dict[str, Any]) -> Iterator[str]:
    """A group's heading, command and rows; a row names its command where that is not the one above.

    Raises:
        SystemExit: an older figure stands above a newer one, or a row cannot be.
    """
    figures = group["figures"]
    if any(above["date"] < below["date"] for above, below in pairwise(figures)):
        sys.exit(
            f"{DATA.relative_to(ROOT)}: {group['title']!r} has an older figure above a newer one; the newest come first"
        )
    yield from (f"### {group['title']}", "", f"`{group['command']}`", "")
    yield from ("| what | asked | seen | day | why missed |", "|---|---|---|---|---|")
    commands = [group["command"], *(figure.get("command", group["command"]) for figure in figures)]
    for figure, (above, command) in zip(figures, pairwise(commands), strict=True):
        yield row(figure, command if command != above else "")
    yield ""


def main() -> int:
    """Write the page, or compare."""
    chosen = parser(__doc__).parse_args()
    groups = tomllib.loads(DATA.read_text())["group"]
    head, rest = PAGE.read_text().split(BEGIN)
    tables = "\n".join(line for group in groups for line in group_table(group))
    return settle({PAGE: f"{head}{BEGIN}\n{tables}\n{END}{rest.split(END)[1]}"}, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
