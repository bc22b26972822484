"""The driver's end: at exit in strict mode, and a process that stands still."""

import signal
import time


def test_a_program_leaves_while_its_threads_are_in_the_driver(clients, built):
    """Handlers registered later than cuInit still have a driver, destructors get CUDA_ERROR_DEINITIALIZED; status 0."""
    machine = clients("a100", "strict=1")

    for _ in range(20):
        assert (0, "handler 600\ndestructor 4\n", "") == machine.execute(built("emulator/leaves.c"))


def test_a_stopped_process_loses_the_gpu_after_its_slice(clients):
    """Others go on beside a process that was stopped in the middle of a kernel, and so does it when it is continued."""
    machine = clients("a100")
    held = machine.start("open_gpu(); k = Spinner(); k.launch(3_000_000_000); answer(1); k.sync(); answer(2)")
    held.stdout.readline()
    time.sleep(0.1)
    held.send_signal(signal.SIGSTOP)
    done = machine.run("open_gpu(); k = Spinner()\nfor _ in range(3): k.launch(1_000_000); k.sync()\nanswer('done')")
    held.send_signal(signal.SIGCONT)

    assert ("done", 2) == (done, machine.answer(held))


def test_cancelled_threads_take_no_lock_along(clients, built):
    """Threads that are cancelled while they launch, wait and allocate leave a driver that works for the others."""
    assert (0, "done\n", "") == clients("a100").execute(built("emulator/cancelled.c"), "200")
