"""Checks that the hook's layers call downward only: prints each breach and exits with 1, or nothing.

    tools/native_layers.py [FOLDER]    native/hook by default

The layers are the folders, from the lowest to the highest in `LAYERS`. From the text of the C files, comments left out:

- a file names no function of a higher layer, nor of another file that calls back to it, directly or over others;
- it includes headers of its own layer and of lower ones, and `slot.h`;
- it uses no part of `struct slot` that belongs to a higher layer;
- no struct has more than 25 fields, and every file lies in a layer. What is in gen/ is read by the highest layer.
"""

from __future__ import annotations

import re
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

LAYERS = ("base", "link", "token", "work", "memory", "nvml", "entry")
SHARED_HEADER = "slot.h"
GENERATED = "gen/"
MAX_FIELDS = 25
WORD = re.compile(r"\b[a-z_]\w*\b")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
FUNCTION = re.compile(r"^(?!static)(?:[A-Za-z_][\w \*]*?[\s\*])([a-z_]\w*)\([^;{]*\)\s*\n?\{", re.MULTILINE)
INLINE = re.compile(r"^static inline (?:__attribute__\(\(\w+\)\) )?[\w \*]*?([a-z_]\w*)\([^;{]*\)\s*\n\{", re.MULTILINE)
TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"')
INCLUDE = re.compile(r'^#include "([\w/]+/\w+\.h)"', re.MULTILINE)
PART = re.compile(rf"(?:->|\.)({'|'.join(LAYERS)})\.\w")
STRUCT = re.compile(r"\bstruct (\w+)\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")


def layer_of(name: str) -> int:
    """The number of a file's layer, by its name below the hook's folder; -1: it is in none."""
    folder = name.partition("/")[0]
    return LAYERS.index(folder) if folder in LAYERS else -1


def field_count(body: str) -> int:
    """How many fields the text between a struct's braces declares."""
    declarations = re.sub(r"\([^)]*\)", "", body).split(";")
    return sum(1 + text.count(",") for text in declarations if text.strip())


def breaches(folder: Path) -> list[str]:
    """One sentence for each breach in the C files and headers below `folder`."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*.[ch]"))}
    texts = {name: COMMENT.sub("", path.read_text()) for name, path in files.items() if not name.startswith(GENERATED)}
    home: dict[str, str] = {}
    for name, text in texts.items():
        for found in (FUNCTION if name.endswith(".c") else INLINE).finditer(text):
            home.setdefault(found.group(1), name)
    found_breaches = []
    calls: dict[str, set[str]] = {name: set() for name in texts}
    for name, text in texts.items():
        layer = layer_of(name)
        if layer < 0 and name != SHARED_HEADER:
            found_breaches.append(f"{name}: lies in no layer; the folders are {', '.join(LAYERS)}")
            continue
        for word in sorted(set(WORD.findall(TEXT.sub("", text))) & set(home)):
            other = home[word]
            if other != name:
                calls[name].add(other)
            if layer_of(other) > layer >= 0:
                found_breaches.append(f"{name}: calls {word} of {other}, a higher layer; go through aliquot_above")
        for header in INCLUDE.findall(text):
            if layer_of(header) > layer >= 0:
                found_breaches.append(f"{name}: includes {header}, a higher layer")
        for part in sorted(set(PART.findall(text))):
            if LAYERS.index(part) > layer >= 0:
                found_breaches.append(f"{name}: uses slot.{part}, which is a higher layer's")
        for struct, body in STRUCT.findall(text):
            if (fields := field_count(body)) > MAX_FIELDS:
                found_breaches.append(f"{name}: struct {struct} has {fields} fields, more than {MAX_FIELDS}")
    try:
        TopologicalSorter({name: others for name, others in calls.items() if name.endswith(".c")}).prepare()
    except CycleError as error:
        found_breaches.append(f"{' -> '.join(error.args[1])}: call each other in a circle")
    return found_breaches


def main() -> int:
    """Print the breaches."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "native" / "hook"
    lines = breaches(folder)
    for line in lines:
        print(line)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
