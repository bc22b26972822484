"""`aliquot` whose engine stops after a step of a park, of a return or of a move, for as long as a file names the step.

The file is STEPS_DIR/at; STEPS_DIR/stopped is written once the engine has stopped there.
"""

from __future__ import annotations

import functools
import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aliquot.arbiter.client import ArbiterClient
from aliquot.cli.main import main
from aliquot.driver.checkpoints import Checkpoints
from aliquot.placement.machine import MachineLedger

FOLDER = Path(os.environ["STEPS_DIR"])


def step_at(kind: type, name: str, step: Callable[[tuple[Any, ...], Any], str]) -> None:
    """Stop after each call of a method which is the step that the file names."""
    method = getattr(kind, name)

    @functools.wraps(method)
    def stopping(*args: Any, **options: Any) -> Any:
        answer = method(*args, **options)
        at, stopped = FOLDER / "at", FOLDER / "stopped"
        taken = step(args, answer)
        while taken and at.exists() and at.read_text() == taken:
            stopped.write_text(taken)
            time.sleep(0.005)
        return answer

    setattr(kind, name, stopping)


copies: weakref.WeakSet[MachineLedger] = weakref.WeakSet()
copied = MachineLedger.copy


def copy(ledger: MachineLedger) -> MachineLedger:
    """As `MachineLedger.copy`: steps are of the engine's own alone."""
    copies.add(trial := copied(ledger))
    return trial


MachineLedger.copy = copy  # type: ignore[method-assign]
step_at(ArbiterClient, "park_tenant", lambda _, answer: "drain" if answer.ready else "revoke")
step_at(ArbiterClient, "resize_tenant", lambda *_: "change")
step_at(ArbiterClient, "unpark_tenant", lambda *_: "go on")
step_at(Checkpoints, "do", lambda args, _: args[1].lower())
step_at(MachineLedger, "park", lambda args, _: "release" if args[0] not in copies else "")
step_at(MachineLedger, "unpark", lambda args, _: "reserve" if args[0] not in copies else "")
main()
