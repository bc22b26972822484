"""Logging: little, and of a defect the place and the error, never a query, a header or a variable."""

from __future__ import annotations

import traceback
from typing import Final

from aliquot.lib.log import Logger

_LOG: Final = Logger("web")


def defect(what: str, error: Exception, *, path: str = "") -> None:
    """Log an unexpected error. `path` is the URL path without its query; line breaks are escaped."""
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    _LOG.error(what, path=ascii(path)[1:-1], error=f"{type(error).__name__}: {error}", where=where[-6:])


def notice(what: str) -> None:
    """Log a notice for the operator."""
    _LOG.info(what)
