"""Error messages for users: one sentence, with a remedy.

Two kinds only, because a program that calls aliquot has to know what to do: `UserError` (change the request, exit
status 2) and `AliquotError` (something failed, exit status 1). Everything else is a defect and keeps its traceback.
"""

from __future__ import annotations

import signal
from typing import ClassVar, Final

WORD: Final = 300
"""Characters of a message's longest word, which may be what a user gave."""
SENTENCE: Final = 2000
"""Characters of the longest message."""


class AliquotError(Exception):
    """A failure that a person can read and act upon; its text is the whole message."""

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        return one_line(super().__str__())


class UserError(AliquotError):
    """An invalid request, whatever the state of the machine."""

    exit_code: ClassVar[int] = 2


def one_line(text: str) -> str:
    """The text in one line: long words are cut, and terminal control characters are escaped."""
    return printable(_cut(" ".join(_cut(word, WORD) for word in text.split()), SENTENCE))


def printable(text: str) -> str:
    """The text with what is no printable character escaped, line breaks included: it may be another account's."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 3 :]}"


def in_words(error: OSError) -> str:
    """A refusal by the system, as a sentence ends: `/var/lib/x: no space left on device`."""
    named = error.filename2 or error.filename  # of a copy the target: it is what the disk has no room for
    where = f"{named}: " if named else ""
    return where + (error.strerror.lower() if error.strerror else str(error))


def status_in_words(status: int) -> str:
    """How a process ended, by its status as `subprocess` has it: `status 3`, `signal SIGBUS`."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
