"""What every generator does with the files that it made: write those that differ, or with --check only say so."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def parser(about: str | None) -> argparse.ArgumentParser:
    """The flags that every generator has."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--check", action="store_true", help="write nothing; status 1 when something is stale")
    return made


def settle(made: Mapping[Path, str], there: Iterable[Path] = (), *, check: bool, flags: str = "") -> int:
    """Make the files what they should be, or with `check` name those that are not; the program's exit status.

    `there` are the files that lie where only made ones may; the others of them are removed. `flags` are those that the
    generator needs to mend what is stale.
    """
    stale = [path for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text]
    stray = [path for path in there if path not in made]
    if check:
        mend = " ".join(filter(None, (f"run tools/{Path(sys.argv[0]).name}", flags)))
        for path in sorted([*stale, *stray]):
            print(f"{path.relative_to(ROOT)} is stale; {mend}", file=sys.stderr)
        return 1 if stale or stray else 0
    for path in stray:
        path.unlink()
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_name(f"{path.name}.new")
        whole.write_text(made[path], "utf-8")
        whole.replace(path)
    return 0
