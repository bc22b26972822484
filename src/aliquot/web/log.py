"""Logging: little, and of a defect the place and the error, never a query, a header or a variable."""

from __future__ import annotations

from typing import Final

from aliquot.lib.log import Logger

_LOG: Final = Logger("web")
defect = _LOG.defect
notice = _LOG.info
