"""Measured programs run before others where the GPU is emulated.

An emulated GPU shares the machine's processors with the programs that use it. A program that waits for a processor
leaves its GPU idle, and what is measured then is the machine.
"""

from __future__ import annotations

import contextlib
import os


def go_before_other_programs() -> None:
    """Be scheduled as the arbiter and the emulated GPU are, where the rights are there; threads begun later are too.

    Not for programs that poll: two of them would keep the arbiter waiting.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
