"""What people are told when something is wrong: one sentence, with the way out in it.

Two kinds only, for a program that calls aliquot has to know whose turn it is: `UserError` (change what you asked, exit
status 2) and `AliquotError` (something failed, exit status 1). Everything else is a defect and keeps its traceback.
"""

from __future__ import annotations

import os
from typing import ClassVar


class AliquotError(Exception):
    """A failure that a person can read and act upon; its text is the whole message."""

    exit_code: ClassVar[int] = 1


class UserError(AliquotError):
    """What was asked can not be right, whatever the state of the machine."""

    exit_code: ClassVar[int] = 2


def in_words(error: OSError) -> str:
    """What the system refused, as a sentence ends: `/var/lib/x: no space left on device`."""
    where = f"{error.filename}: " if error.filename else ""
    return where + (str(error) if error.errno is None else os.strerror(error.errno).lower())
