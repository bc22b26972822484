"""Programs whose main thread ends by pthread_exit, under the hook: its threads keep nothing alive."""

import os
import signal
import time
from pathlib import Path

import pytest
from kit.compiling import compile_c

SOURCE = Path(__file__).parents[1] / "emulator" / "main_ends.c"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """main_ends.c, built."""
    return compile_c(tmp_path / "main_ends", SOURCE)


def test_a_process_ends_with_the_last_thread_of_its_own(tenant, program):
    """A process whose only threads are the hook's ends with status 0, as it does without the hook."""
    process = tenant(auto_grant=True).start([str(program), "context"]).process

    assert 0 == process.wait(20)


def test_sigterm_ends_what_the_drivers_threads_keep_alive(tenant, program):
    """Where threads of the driver are left beside the hook's, SIGTERM ends the process."""
    process = tenant(auto_grant=True).start([str(program), "launch"]).process
    assert "ready\n" == process.stdout.readline()
    stat = Path(f"/proc/{process.pid}/stat")
    while process.poll() is None and stat.read_text().rpartition(") ")[2][0] != "Z":
        time.sleep(0.01)
    alive = process.poll() is None

    os.kill(process.pid, signal.SIGTERM)

    assert alive
    assert -signal.SIGTERM == process.wait(20)
