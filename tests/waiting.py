"""Waiting in tests: by what is waited for, with a deadline that only a failure reaches."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(holds: Callable[[], object], what: str = "what was waited for", timeout_s: float = 20.0) -> None:
    """Wait for something that other threads or processes make true."""
    until_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < until_s, f"not in {timeout_s} s: {what}"
        time.sleep(0.01)
