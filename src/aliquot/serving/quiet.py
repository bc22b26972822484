"""A server that is a part of a program and leaves the program its signals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn


class QuietServer(uvicorn.Server):
    """uvicorn without its own signal handlers; it ends when `should_exit` is set."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield
