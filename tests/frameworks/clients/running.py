"""What every client starts with: features are small functions, run one after another, with one line of JSON for each.

    python torch_client.py NAME...

runs the features named, in this order; without names it lists those that there are.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence

from counters import launches

FEATURES: dict[str, Callable[[], object]] = {}
LONGEST = 600


def feature(run: Callable[[], object]) -> Callable[[], object]:
    """Note a function as the feature of its name; it fails by an exception."""
    FEATURES[run.__name__] = run
    return run


def counted() -> dict[str, int]:
    """Launches so far as the emulated driver and the hook count them; 0 where that library is not here."""
    return {who: count or 0 for who, count in launches().items()}


def one(name: str) -> dict[str, object]:
    """Run one feature and say how it went."""
    before, start_s = counted(), time.monotonic()
    try:
        seen = FEATURES[name]()
        error = ""
    except Exception as failure:
        seen, error = None, f"{type(failure).__name__}: {failure}"[:LONGEST]
        traceback.print_exc()
    after = counted()
    facts: dict[str, object] = {"feature": name, "error": error, "seconds": round(time.monotonic() - start_s, 1)}
    facts |= {who: after[who] - before[who] for who in after}
    return facts | ({"seen": seen} if seen is not None else {})


def main(names: Sequence[str], versions: dict[str, str]) -> None:
    """List the features, or run those named."""
    if not names:
        print(json.dumps({"features": list(FEATURES), "versions": versions}))
    for name in names:
        print(json.dumps(one(name)), flush=True)


__all__ = ["FEATURES", "feature", "main", "sys"]
