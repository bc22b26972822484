"""What a program of a tenant says to its engine: that it needs no GPU until further notice, and that it needs one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from aliquot.model.errors import AliquotError
from aliquot.standalone.client import ask
from aliquot.standalone.paths import RuntimeDir, engine_dir
from aliquot.standalone.wire import PhaseCall

POLL_S: Final = 0.02
POLL_MAX_S: Final = 0.2


def say(*, needs: bool, timeout_s: float | None = None, on_wait: Callable[[str], None] = lambda _: None) -> str:
    """Say whether this process's tenant needs its GPU; its name, once its memory is there if it does.

    `on_wait` gets the reason while it waits.

    Raises:
        NoEngine: none is up.
        EngineRefused: this process has no share, or memory that stays on its GPU.
        AliquotError: its memory is not there after `timeout_s`; it still comes once there is room.
    """
    pause_s = POLL_S
    until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while (phase := ask(RuntimeDir(engine_dir()), PhaseCall(needs))).waits:
        if time.monotonic() >= until_s:
            raise AliquotError(
                f"the GPU memory was not back after {timeout_s:g} s, and is still waited for: {phase.waits}"
            )
        on_wait(phase.waits)
        time.sleep(pause_s)
        pause_s = min(POLL_MAX_S, 2 * pause_s)
    return phase.name
