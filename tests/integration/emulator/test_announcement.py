"""A person at a terminal is told that the GPU is emulated."""

import os
import pty
import subprocess
import sys
from pathlib import Path

PRELUDE = Path(__file__).with_name("client_prelude.py").read_text("utf-8")
LINE = "aliquot: emulated GPU: kernels take time but compute nothing"


def told(machine, code, **env: str) -> int:
    """How often the line is printed to the terminal of a command that runs `code` after the prelude."""
    reader, terminal = pty.openpty()
    variables = {**os.environ, "LD_LIBRARY_PATH": str(machine.directory), "ALIQUOT_EMULATOR_QUIET": "", **env}
    command = [sys.executable, "-c", PRELUDE + "\n" + code]
    child = subprocess.Popen(command, env=variables, stderr=terminal, start_new_session=True)
    os.close(terminal)
    text = b""
    try:
        while chunk := os.read(reader, 4096):
            text += chunk
    except OSError:  # the last process that had the terminal has ended
        pass
    os.close(reader)
    assert child.wait(30) == 0
    return text.decode().count(LINE)


def test_a_command_at_a_terminal_tells_once(clients):
    """The line is printed at a command's first context and not for its children; the next command prints it anew."""
    machine = clients("a100").machine
    child = "import os; exec(os.environ['CHILD'])"
    tree = f"open_gpu(); import subprocess; subprocess.run([sys.executable, '-c', {child!r}], check=True)"

    assert told(machine, tree, CHILD=PRELUDE + "\nopen_gpu()") == 1
    assert told(machine, "open_gpu()") == 1


def test_nothing_is_told_without_a_context_or_when_it_is_not_wanted(clients):
    """A program that makes no context is silent, and so is one with ALIQUOT_EMULATOR_QUIET=1."""
    machine = clients("a100").machine

    assert told(machine, "ck(d.cuInit(0))") == 0
    assert told(machine, "open_gpu()", ALIQUOT_EMULATOR_QUIET="1") == 0


def test_what_is_no_terminal_stays_clean(clients):
    """Nothing is written to a standard error that is a pipe or a file."""
    machine = clients("a100")
    child = machine.start("open_gpu()")

    assert child.communicate(timeout=30)[1] == ""
