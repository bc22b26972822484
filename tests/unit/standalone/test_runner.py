"""How a run's command ends."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aliquot.standalone import runner
from aliquot.standalone.wire import RunLease

SLEEPS = "import signal, time; signal.pthread_sigmask(signal.SIG_SETMASK, []); time.sleep(100)"


def test_a_run_ends_with_its_engine_whichever_thread_looks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A command that was ended because the engine is gone ends the run, however slow a second thread is to see it."""

    class Popen(subprocess.Popen[bytes]):
        """Other threads hold the process's lock for long when they find that it has ended."""

        def _try_wait(self, flags: int) -> tuple[int, int]:
            found: tuple[int, int] = super()._try_wait(flags)  # type: ignore[misc]
            if found[0] == self.pid and threading.current_thread() is not threading.main_thread():
                time.sleep(0.3)
            return found

    monkeypatch.setattr(subprocess, "Popen", Popen)
    monkeypatch.setattr(runner, "launch", lambda folder, argv, env, **_: SimpleNamespace(argv=argv, env=os.environ))
    names: dict[str, Any] = dict.fromkeys(("socket", "directory", "libcuda", "libnvml"), str(tmp_path / "x"))
    lease = RunLease(name="a", visible_devices="", **names)

    def ended() -> int:
        gone, command = lambda: time.sleep(0.2), [sys.executable, "-c", SLEEPS]
        return runner.run_command(lease, command, {}, mode="auto", engine_gone=gone, timeout_s=5)

    assert [128 + 15] * 3 == [ended() for _ in range(3)]
