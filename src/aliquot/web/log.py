"""What is logged of a defect: the place and the error, never a query, a header or a variable."""

from __future__ import annotations

import traceback
from typing import Final

import structlog

_LOG: Final = structlog.get_logger("aliquot.web")


def defect(what: str, error: Exception, *, path: str = "") -> None:
    """Log an error that should not be; `path` is an address without its query."""
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    _LOG.error(what, path=path, error=f"{type(error).__name__}: {error}", where=where[-6:])
