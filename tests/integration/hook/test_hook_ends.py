"""Programs whose main thread ends by pthread_exit, under the hook: its threads keep nothing alive."""

import os
import signal
import time
from pathlib import Path


def test_a_process_ends_with_the_last_thread_of_its_own(tenant, built):
    """A process whose only threads are the hook's ends with status 0, as it does without the hook."""
    process = tenant(auto_grant=True).start([built("emulator/main_ends.c"), "context"]).process

    assert 0 == process.wait(20)


def test_sigterm_ends_what_the_drivers_threads_keep_alive(tenant, built):
    """Where threads of the driver are left beside the hook's, SIGTERM ends the process."""
    process = tenant(auto_grant=True).start([built("emulator/main_ends.c"), "launch"]).process
    assert "ready\n" == process.stdout.readline()
    stat = Path(f"/proc/{process.pid}/stat")
    while process.poll() is None and stat.read_text().rpartition(") ")[2][0] != "Z":
        time.sleep(0.01)
    alive = process.poll() is None

    os.kill(process.pid, signal.SIGTERM)

    assert alive
    assert -signal.SIGTERM == process.wait(20)
