"""Pages of the documentation as what a reader takes from them: commands to type, manifests to save, programs to run.

How a fence says what it is (CONTRIBUTING.md tells readers):

- `console` is a session: lines after `$ ` are typed, the others are what is printed. `sh` is typed alone.
- `yaml` is a manifest, `python` a program; with `file=NAME` behind it the page's commands find it under that name.
- `text`, and a fence without a word that holds no command, is only read.
- `slow` behind the word: too long for every run, as benchmarks, demos and papers are without saying so. `exact`:
  numbers that are printed are always these. `fails`: the last command ends with an error, which is what is shown.
- A paragraph `Not run by the tests: REASON.` above a fence says why nobody runs it.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[3]
Kind = Literal["commands", "manifest", "program", "text"]
KINDS: dict[str, Kind] = {
    "console": "commands", "sh": "commands", "yaml": "manifest", "python": "program", "text": "text", "json": "text",
    "c": "text", "toml": "text", "promql": "text", "csv": "text", "ini": "text",
}  # fmt: skip
WORDS = {"slow", "exact", "fails"}
PROGRAMS = re.compile(
    r"^(\$ |(\.venv/bin/)?aliquot |kubectl |helm |make |curl |python3? |pip |git clone )", re.MULTILINE
)
LONG = re.compile(r"\baliquot (bench|demo|sim paper|sim openb)\b")
NOT_RUN = re.compile(r"^\*?Not run by the tests: (.+?)\.?\*?$")
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<info>.*)$")


class BadPage(AssertionError):
    """A page that says something the convention has no meaning for; the text has file and line."""


@dataclass(frozen=True)
class Step:
    """One command, and what the page says it prints (None where it says nothing)."""

    line: int
    command: str
    printed: str | None = None


@dataclass(frozen=True)
class Block:
    """One fence. `line` is that of its opening; `steps` are a commands block's commands."""

    page: str
    line: int
    kind: Kind
    words: frozenset[str]
    file: str
    text: str
    not_run: str = ""
    steps: tuple[Step, ...] = field(default=())

    def takes_long(self, step: Step) -> bool:
        """Whether a command is too long for every run: the block says so, or it is a benchmark, a demo or a paper."""
        return "slow" in self.words or LONG.search(step.command) is not None

    @property
    def place(self) -> str:
        """`docs/page.md:12`."""
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README.md and every page under docs/, but for decisions, which are not instructions."""
    found = sorted(path for path in (ROOT / "docs").rglob("*.md") if "decisions" not in path.parts)
    return [ROOT / "README.md", *found]


def name_of(path: Path) -> str:
    """The page as people call it, from the root of the repository."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def sections(path: Path) -> dict[str, str]:
    """The text of each section of a page by its heading."""
    found = re.split(r"^## (.+)\n", path.read_text(), flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def blocks(path: Path) -> list[Block]:
    """Every fence of a page, in order.

    Raises:
        BadPage: a fence of an unknown language, with an unknown word, or without an end.
    """
    found: list[Block] = []
    lines = path.read_text().splitlines()
    at, above = 0, ""
    while at < len(lines):
        opening = FENCE.match(lines[at])
        if opening is None:
            above = lines[at].strip() or above
            at += 1
            continue
        body, start = [], at + 1
        at += 1
        while at < len(lines) and lines[at].strip() != opening["ticks"]:
            body.append(lines[at].removeprefix(opening["indent"]))
            at += 1
        if at == len(lines):
            raise BadPage(f"{name_of(path)}:{start}: this fence has no end")
        at += 1
        found.append(_block(name_of(path), start, opening["info"].split(), "\n".join(body) + "\n", above))
        above = ""
    return found


def _block(page: str, line: int, info: list[str], text: str, above: str) -> Block:
    language = info[0] if info else ("console" if PROGRAMS.search(text) else "text")
    if not info and ("[OPTIONS]" in text or "$(" in text):
        language = "text"  # a usage line, or a line for the shell's own file
    if not info and language == "console" and not text.startswith("$ "):
        language = "sh"
    words = frozenset(word for word in info[1:] if "=" not in word)
    named = [word.removeprefix("file=") for word in info[1:] if word.startswith("file=")]
    if language not in KINDS or words - WORDS or len(info[1:]) != len(words) + len(named):
        raise BadPage(f"{page}:{line}: `{' '.join(info)}` is none of {sorted(KINDS)} with {sorted(WORDS)} or file=NAME")
    reason = NOT_RUN.match(above)
    kind = KINDS[language]
    steps = tuple(_session(line, text) if language == "console" else _typed(line, text)) if kind == "commands" else ()
    return Block(page, line, kind, words, named[0] if named else "", text, reason[1] if reason else "", steps)


def _session(line: int, text: str) -> list[Step]:
    """Commands after `$ ` and what follows each; a backslash at the end goes on with the next line."""
    found: list[tuple[int, list[str], list[str]]] = []
    for number, row in enumerate(text.splitlines(), line + 1):
        if found and not found[-1][2] and found[-1][1][-1].endswith("\\"):
            found[-1][1].append(row)
        elif row.startswith("$ "):
            found.append((number, [row.removeprefix("$ ")], []))
        elif found:
            found[-1][2].append(row)
    return [
        Step(number, "\n".join(typed), "\n".join(printed).rstrip() if any(printed) else None)
        for number, typed, printed in found
    ]


def _typed(line: int, text: str) -> list[Step]:
    """One command a line; what stands behind a # is for the reader."""
    found: list[Step] = []
    rows = text.splitlines()
    at = 0
    while at < len(rows):
        first, row = at, rows[at]
        while row.endswith("\\"):
            at += 1
            row += "\n" + rows[at]
        at += 1
        command = re.sub(r"(^|\s+)#\s.*$", "", row.removeprefix("$ ")).strip()
        if command:
            found.append(Step(line + 1 + first, command))
    return found
