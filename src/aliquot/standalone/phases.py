"""What a program of a tenant says to its engine: that it needs no GPU until further notice, and that it needs one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from aliquot.model.errors import AliquotError
from aliquot.standalone.client import ENGINE_BACK_S, NoEngine, ask, ask_next
from aliquot.standalone.paths import RuntimeDir, engine_dir, machine_dir
from aliquot.standalone.wire import PhaseAnswer, PhaseCall

POLL_S: Final = 0.02
POLL_MAX_S: Final = 0.2


def say(*, needs: bool, timeout_s: float | None = None, on_wait: Callable[[str], None] = lambda _: None) -> str:
    """Say whether this process's tenant needs its GPU; its name, once its memory is there if it does.

    `on_wait` gets the reason while it waits, also for the next engine where the machine's restarts.

    Raises:
        NoEngine: none is up.
        EngineRefused: this process has no share, or memory that stays on its GPU.
        AliquotError: its memory is not there after `timeout_s`; it still comes once there is room.
    """
    pause_s = POLL_S
    until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while (phase := _ask(PhaseCall(needs), on_wait, until_s)).waits:
        if time.monotonic() >= until_s:
            raise AliquotError(
                f"the GPU memory was not back after {timeout_s:g} s, and is still waited for: {phase.waits}"
            )
        on_wait(phase.waits)
        time.sleep(pause_s)
        pause_s = min(POLL_MAX_S, 2 * pause_s)
    return phase.name


def _ask(call: PhaseCall, on_wait: Callable[[str], None], until_s: float) -> PhaseAnswer:
    runtime, machine = RuntimeDir(engine_dir()), RuntimeDir(machine_dir())
    try:
        return ask(runtime, call)
    except NoEngine:
        if not machine.keeper.exists():  # no run waits for the next engine
            raise
    on_wait("waits: the machine's engine restarts")
    connection, answer = ask_next(machine, call, within_s=min(ENGINE_BACK_S, until_s - time.monotonic()))
    connection.close()
    return answer
