"""The log of all programs: one line for each thing that happens, on stderr, for people or as JSON.

Libraries log to the same place, from level warning up, through the same renderer. This is the only module that imports
structlog, and it does so with the first line that is logged: structlog imports rich, and `aliquot run` beside a running
engine logs nothing. structlog's own default writes to standard output, in colour; standard output stays for answers.
What repeats itself every few seconds is logged when it changes (`Repeats`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger, Processor


def set_up_log(form: str = "text") -> None:
    """Log as `text`, for people, or as `json` from now on."""
    import structlog

    facts: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if form == "json":
        facts.append(structlog.processors.format_exc_info)
        last: Processor = structlog.processors.JSONRenderer()
    else:
        last = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    # The stream is looked up at each line: after sys.stderr is replaced, lines go to the new stream.
    structlog.configure(processors=[*facts, last], logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=facts,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


class Logger:
    """The log of a part of the programs; as text until a program sets it up.

    structlog is imported with the first line, because it imports rich, which most commands do not need.
    """

    def __init__(self, part: str) -> None:
        self._part = part

    def info(self, event: str, *values: object, **facts: object) -> None:
        """Log a normal event."""
        self._log().info(event, *values, **facts)

    def warning(self, event: str, *values: object, **facts: object) -> None:
        """Log a failure that the program can do without."""
        self._log().warning(event, *values, **facts)

    def error(self, event: str, *values: object, **facts: object) -> None:
        """Log an event that must not happen; with `exc_info` its traceback."""
        self._log().error(event, *values, **facts)

    def exception(self, event: str, *values: object, **facts: object) -> None:
        """As `error`, with the traceback of the exception that is being handled."""
        self._log().exception(event, *values, **facts)

    def defect(self, what: str, error: Exception, *, path: str = "") -> None:
        """Log an unexpected error and its place, never a query, a header or a variable.

        `path` is that of a URL, without its query; line breaks are escaped.
        """
        import traceback

        where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
        self.error(what, path=ascii(path)[1:-1], error=f"{type(error).__name__}: {error}", where=where[-6:])

    def _log(self) -> FilteringBoundLogger:
        import structlog

        if not structlog.is_configured():
            set_up_log()
        log: FilteringBoundLogger = structlog.get_logger(self._part)
        return log


class Repeats:
    """Finds out whether a message about a subject differs from the last one about it."""

    def __init__(self) -> None:
        self._said: dict[Hashable, Any] = {}

    def news(self, what: Any, about: Hashable = None) -> bool:
        """Whether the message differs from the last one about the subject; an empty message never counts as news."""
        if what == self._said.get(about):
            return False
        if not what:
            self._said.pop(about, None)
            return False
        self._said[about] = what
        return True
