"""What a program of a tenant says to its engine: that it needs no GPU until further notice, and that it needs one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from aliquot.standalone.client import ask
from aliquot.standalone.paths import RuntimeDir, engine_dir
from aliquot.standalone.wire import PhaseCall

POLL_S: Final = 0.02
POLL_MAX_S: Final = 0.2


def say(*, needs: bool, on_wait: Callable[[str], None] = lambda _: None) -> str:
    """Say whether this process's tenant needs its GPU; its name, once its memory is there if it does.

    `on_wait` gets the reason while it waits.

    Raises:
        NoEngine: none is up.
        EngineRefused: this process has no share, or memory that stays on its GPU.
    """
    pause_s = POLL_S
    while (phase := ask(RuntimeDir(engine_dir()), PhaseCall(needs))).waits:
        on_wait(phase.waits)
        time.sleep(pause_s)
        pause_s = min(POLL_MAX_S, 2 * pause_s)
    return phase.name
