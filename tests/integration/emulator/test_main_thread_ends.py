"""Programs whose main thread ends by pthread_exit: the driver's threads are all that is left of the process."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def start(clients, built) -> Callable[..., subprocess.Popen[str]]:
    """Starts main_ends.c with these words on an emulated machine."""
    machine = clients("a100")
    return lambda *words: machine.launch(built("emulator/main_ends.c"), *words)


def wait_for_end_of_main(process: subprocess.Popen[str]) -> None:
    """Until the main thread is a zombie while the process lives."""
    assert process.stdout is not None
    assert "ready\n" == process.stdout.readline()
    stat = Path(f"/proc/{process.pid}/stat")
    while process.poll() is None and stat.read_text().rpartition(") ")[2][0] != "Z":
        time.sleep(0.01)


def test_sigterm_ends_a_process_without_a_main_thread(start):
    """The driver's thread keeps the process alive, as a real driver's does, and SIGTERM ends it."""
    process = start("launch")
    wait_for_end_of_main(process)
    alive = process.poll() is None

    process.send_signal(signal.SIGTERM)

    assert alive
    assert -signal.SIGTERM == process.wait(20)


def test_a_handler_runs_in_a_process_without_a_main_thread(start):
    """A handler of the program runs although none of its threads is left."""
    process = start("launch", "handler")
    wait_for_end_of_main(process)

    process.send_signal(signal.SIGTERM)

    assert 7 == process.wait(20)


def test_a_process_without_threads_of_the_driver_ends_with_its_main_thread(start):
    """Nothing was launched, so the driver has no thread, and the process ends with status 0."""
    assert 0 == start("context").wait(20)
