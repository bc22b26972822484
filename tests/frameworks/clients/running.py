"""What every client starts with: features are small functions, run one after another, with one line of JSON for each.

    python torch_client.py NAME...
    python torch_client.py --but NAME...

runs the features named in this order, or all but those named. The first line lists what there is. SIGUSR1 makes a
program of these write the stacks of its threads to its error stream.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence

from counters import launches

FEATURES: dict[str, Callable[[], object]] = {}
LONGEST = 600

faulthandler.register(signal.SIGUSR1, all_threads=True)


def feature(run: Callable[[], object]) -> Callable[[], object]:
    """Note a function as the feature of its name; it fails by an exception."""
    FEATURES[run.__name__] = run
    return run


def counted() -> dict[str, int]:
    """Launches so far as the emulated driver and the hook count them; 0 where that library is not here."""
    return {who: count or 0 for who, count in launches().items()}


def one(name: str) -> dict[str, object]:
    """Run one feature and say how it went; what it returns as `launches` was counted by processes that it started."""
    before, start_s = counted(), time.monotonic()
    seen, error = {}, ""
    try:
        seen = FEATURES[name]() or {}
    except Exception as failure:
        error = f"{type(failure).__name__}: {str(failure)[-LONGEST:]}"  # its end, for it may be a whole traceback
        traceback.print_exc()
    after, elsewhere = counted(), seen.pop("launches", {})
    counts = {who: after[who] - before[who] + elsewhere.get(who, 0) for who in after}
    return {"feature": name, "error": error, "seconds": round(time.monotonic() - start_s, 1), "seen": seen} | counts


def main(names: Sequence[str], versions: dict[str, str]) -> None:
    """List the features, and run those chosen."""
    print(json.dumps({"features": list(FEATURES), "versions": versions}), flush=True)
    if names[:1] == ["--but"]:
        names = [name for name in FEATURES if name not in names]
    for name in names:
        print(json.dumps(one(name)), flush=True)


__all__ = ["FEATURES", "counted", "feature", "main", "sys"]
