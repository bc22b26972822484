"""The log of all programs: one line for each thing that happens, on stderr, for people or as JSON.

What libraries log goes the same way, from warnings up. See docs/decisions/0032-one-log.md.
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

    structlog is imported with the first line: it brings rich along, which most commands have no need of.
    """

    def __init__(self, part: str) -> None:
        self._part = part

    def info(self, event: str, *values: object, **facts: object) -> None:
        """Something went on as it should."""
        self._log().info(event, *values, **facts)

    def warning(self, event: str, *values: object, **facts: object) -> None:
        """Something did not work and is gone without."""
        self._log().warning(event, *values, **facts)

    def error(self, event: str, *values: object, **facts: object) -> None:
        """Something that must not happen; with `exc_info` its trace."""
        self._log().error(event, *values, **facts)

    def exception(self, event: str, *values: object, **facts: object) -> None:
        """`error`, with the trace of the exception that is being handled."""
        self._log().exception(event, *values, **facts)

    def _log(self) -> FilteringBoundLogger:
        import structlog

        if not structlog.is_configured():
            set_up_log()
        log: FilteringBoundLogger = structlog.get_logger(self._part)
        return log


class Repeats:
    """Tells what is said for the first time from what was said last about the same subject."""

    def __init__(self) -> None:
        self._said: dict[Hashable, Any] = {}

    def news(self, what: Any, about: Hashable = None) -> bool:
        """Whether it differs from what was said last about the subject; nothing, as an empty text, is no news."""
        if what == self._said.get(about):
            return False
        if not what:
            self._said.pop(about, None)
            return False
        self._said[about] = what
        return True
