"""One container of a SharePod: its program is started, watched, and started again by its restart policy."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aliquot.lib.backoff import doubled_s
from aliquot.model.errors import AliquotError, in_words, status_in_words
from aliquot.model.sharepod import ContainerTemplate, TemplateSpec
from aliquot.standalone.logs import ContainerLog
from aliquot.standalone.orphans import end_orphans
from aliquot.standalone.program import start_program, with_tools
from aliquot.standalone.tenants import EngineTenant
from aliquot.standalone.wire import ContainerStage

BACKOFF_FIRST_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0
RAN_WELL_S: Final = 60.0
MAX_GRACE_S: Final = 60.0
"""Of the containers of other accounts."""


class ContainerRun:
    """A container's life. All methods may be called from any thread."""

    def __init__(
        self,
        spec: ContainerTemplate,
        template: TemplateSpec,
        tenant: EngineTenant,
        log: ContainerLog,
        *,
        note: Callable[[str], None],
        on_ended: Callable[[], None],
        on_done: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.log = log
        self.restarts = 0
        self.exit_status: int | None = None
        self.done = False
        self._tenant = tenant
        self._template = template
        own = {v.name: v.value for v in spec.env}
        self.environment = with_tools(tenant.owner.environment | own, tenant.folder.conf.libcuda)
        self.environment |= tenant.variables
        self._note = note
        self._on_ended = on_ended
        self._on_done = on_done
        self._ending = threading.Event()
        self._backing_off = False
        self._attempted = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._live, name=f"container-{spec.name}", daemon=True)

    @property
    def cwd(self) -> Path | None:
        """Where its program starts; None for the engine's own folder."""
        if self.spec.working_dir:
            return Path(self.spec.working_dir)
        return None if self._tenant.owner.is_master else self._tenant.owner.home

    @property
    def pid(self) -> int | None:
        """Of the program, while it runs."""
        process = self._process
        return process.pid if process is not None else None

    @property
    def state(self) -> ContainerStage:
        """Running, Waiting (for its next start) or Terminated."""
        if self.done:
            return "Terminated"
        return "Running" if self._process is not None else "Waiting"

    @property
    def reason(self) -> str:
        """CrashLoopBackOff while it waits for its next start, as kubelet says it; else empty."""
        return "CrashLoopBackOff" if self._backing_off else ""

    def start(self) -> None:
        """Start the container; when this returns its program runs, or could not be started."""
        self._thread.start()
        self._attempted.wait()

    def ask_to_end(self) -> None:
        """Send SIGTERM to the program and do not restart it."""
        self._ending.set()
        self._signal(signal.SIGTERM)

    def join(self) -> None:
        """Wait for the end; after the grace period the program is killed."""
        if self._thread is threading.current_thread():
            return
        grace_s = self._template.termination_grace_period_seconds
        self._thread.join(grace_s if self._tenant.owner.is_master else min(grace_s, MAX_GRACE_S))
        if self._thread.is_alive():
            self._signal(signal.SIGKILL)
            self._thread.join()

    def _signal(self, number: int) -> None:
        process = self._process
        if process is None:
            return
        # The container's whole session: a shell that gets a signal does not pass it on to its children.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)

    def _live(self) -> None:
        failures = 0
        while not self._ending.is_set():
            began_s = time.monotonic()
            try:
                self.exit_status = self._run_once()
            finally:
                self._attempted.set()
            self._on_ended()
            self._note(f"container {self.spec.name} ended with {status_in_words(self.exit_status)}")
            policy = self._template.restart_policy
            again = policy == "Always" or (policy == "OnFailure" and self.exit_status != 0)
            if self._ending.is_set() or not again:
                break
            failures = 0 if time.monotonic() - began_s > RAN_WELL_S else failures
            self._backing_off = True
            if self._ending.wait(doubled_s(BACKOFF_FIRST_S, BACKOFF_MAX_S, failures)):
                break
            self._backing_off = False
            failures += 1
            self.restarts += 1
        self.done, self._backing_off = True, False
        self._on_done()

    def _run_once(self) -> int:
        try:
            self.log.begin_run()
            reader, writer = os.pipe()
            copying = self.log.copy_from(reader)
            try:
                # SIGKILL comes from the kernel when the engine is gone: this thread lives as long as the program.
                process = start_program(
                    self._tenant.folder,
                    [*self.spec.command, *self.spec.args],
                    self.environment,
                    cwd=self.cwd,
                    death_signal=signal.SIGKILL,
                    output=writer,
                    new_session=True,
                    container=self.spec.name,
                    owner=self._tenant.owner,
                )
            finally:
                os.close(writer)
        except (OSError, AliquotError) as error:
            reason = in_words(error) if isinstance(error, OSError) else str(error)
            self._note(f"container {self.spec.name} cannot be started: {reason}")
            self.log.append(f"aliquot: {reason}\n".encode())
            return 126
        self._process = process
        self._attempted.set()
        if self._ending.is_set():
            self._signal(signal.SIGTERM)
        try:
            return process.wait()
        finally:
            self._process = None
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            end_orphans([self._tenant.folder.directory], container=self.spec.name)
            copying.join(1.0)
