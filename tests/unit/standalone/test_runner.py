"""How a run's command ends."""

import os
import signal
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


@pytest.fixture
def lease(tmp_path: Path) -> RunLease:
    """A place that nothing looks at."""
    names: dict[str, Any] = dict.fromkeys(("socket", "directory", "libcuda", "libnvml"), str(tmp_path / "x"))
    return RunLease(name="a", visible_devices="", **names)


def test_a_run_ends_with_its_engine_whichever_thread_looks_first(lease: RunLease, monkeypatch: pytest.MonkeyPatch):
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

    def ended() -> int:
        gone, command = lambda: time.sleep(0.2), [sys.executable, "-c", SLEEPS]
        return runner.run_command(lease, command, {}, mode="auto", engine_gone=gone, timeout_s=5)

    assert [128 + 15] * 3 == [ended() for _ in range(3)]


def test_a_signal_to_the_group_before_the_command_is_there_reaches_it_too(
    lease: RunLease, monkeypatch: pytest.MonkeyPatch
):
    """A terminal that closes while the run prepares ends the command, which was not in the group yet."""
    made: list[runner.Broadcasts] = []

    class Broadcasts(runner.Broadcasts):
        def __enter__(self) -> runner.Broadcasts:
            made.append(self)
            return self

    def launch(_folder: object, argv: list[str], _env: object, **_: object) -> SimpleNamespace:
        signal.pthread_kill(threading.get_ident(), signal.SIGHUP)  # other threads of these tests do not block it
        made[0]._watcher.send_signal(signal.SIGHUP)
        return SimpleNamespace(argv=argv, env=os.environ)

    monkeypatch.setattr(runner, "Broadcasts", Broadcasts)
    monkeypatch.setattr(runner, "launch", launch)
    command = [sys.executable, "-c", SLEEPS]

    assert 128 + signal.SIGHUP == runner.run_command(
        lease, command, {}, mode="auto", engine_gone=threading.Event().wait, timeout_s=5
    )
