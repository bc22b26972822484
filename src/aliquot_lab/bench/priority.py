"""Measured programs run before others where the GPU is emulated.

An emulated GPU shares the machine's processors with the programs that use it. A program that waits for a processor
leaves its GPU idle, and what is measured then is the machine.
"""

from __future__ import annotations

import contextlib
import os
import resource


def go_before_other_programs() -> None:
    """Be scheduled as the arbiter and the emulated GPU are, where the rights are there; threads begun later are too.

    Not for programs that poll: two of them would keep the arbiter waiting.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def hindrance() -> str:
    """Why an emulated GPU cannot keep its time exactly now, and what to do about it; empty where nothing is known."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load <= cores:
        return ""
    may = resource.getrlimit(resource.RLIMIT_RTPRIO)[1] != 0 or os.geteuid() == 0
    rights = "" if may else ", and this account may not go before other programs (ulimit -r is 0)"
    return (
        f"This machine is busy (load {load:.0f} on {cores} cores){rights}: an emulated GPU needs a core that is free "
        "when a kernel ends. Figures may be off by some points; start again when it is quiet, or as root."
    )
