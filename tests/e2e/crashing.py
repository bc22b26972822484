"""`aliquot scheduler` that ends as by kill -9 at one step of its first bind; the step is in CRASH_AT.

asked     kube-scheduler has asked for the bind, nothing is done
held      the share is in the ledger, nothing is sent
posted    the API server has bound the pod, the scheduler has not seen the answer
answered  the scheduler has seen it, kube-scheduler has not been told
told      kube-scheduler has been told, the watch brings the bound pod, the ledger has not seen it
"""

import os
import signal
from typing import Any

from aliquot.cli.main import main
from aliquot.kube.api import Api
from aliquot.scheduler.extender.bind import Binder
from aliquot.scheduler.ledger import Ledger
from aliquot.scheduler.program import Scheduler


def die() -> None:
    """At once, as by kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


bind, allocate, request, pod_changed = Binder.bind, Ledger.allocate, Api.request, Scheduler._pod_changed


async def die_asked(self: Any, args: Any) -> None:
    die()


async def die_answered(self: Any, args: Any) -> None:
    await bind(self, args)
    die()


def die_held(self: Any, *args: Any) -> None:
    allocate(self, *args)
    die()


async def die_posted(self: Any, method: str, path: str, **more: Any) -> bytes:
    answer = await request(self, method, path, **more)
    if path.endswith("/binding"):
        die()
    return answer


def die_told(self: Any, change: Any) -> None:
    if change.kind == "modified" and change.object.spec.node_name:
        die()
    pod_changed(self, change)


CRASHES = {
    "asked": (Binder, "bind", die_asked),
    "held": (Ledger, "allocate", die_held),
    "posted": (Api, "request", die_posted),
    "answered": (Binder, "bind", die_answered),
    "told": (Scheduler, "_pod_changed", die_told),
}

if __name__ == "__main__":
    where, name, crash = CRASHES[os.environ["CRASH_AT"]]
    setattr(where, name, crash)
    main()
