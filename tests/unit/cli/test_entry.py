"""Ctrl-C ends a program quietly, whatever it is doing, and streams that are closed change nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

import aliquot

SOURCES = Path(aliquot.__file__).parents[1]
INTERRUPTING = """
import importlib.abc, os, signal, sys

WHERE = sys.argv.pop(1)

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == WHERE:
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Interrupting())
from aliquot.cli.entry import main
main()
"""


@pytest.mark.parametrize(
    "module", ["click", "aliquot.cli.up", "numpy", "numpy._core.multiarray", "aliquot.standalone.engine"]
)
def test_ctrl_c_during_imports_is_no_traceback(module: str, tmp_path: Path):
    """The program ends with a shell's status for it and says nothing, wherever its imports are."""
    words = [module, "up", "--emulate", "v100", "--no-web"]
    env = {"PATH": "/usr/bin:/bin", "ALIQUOT_RUNTIME_DIR": str(tmp_path / "r")}
    command = [sys.executable, "-c", INTERRUPTING, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=env)

    assert (130, "") == (done.returncode, done.stdout + done.stderr.strip())


def test_before_it_is_ready_for_ctrl_c_a_program_imports_next_to_nothing():
    """Until then the interpreter answers Ctrl-C, with a traceback: its own start is all that takes time."""
    code = f"import sys; sys.path.insert(0, {str(SOURCES)!r}); import aliquot.cli.entry; print(*sys.modules)"
    bare = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)

    assert set() == {"signal", "enum", "typing", "re", "collections", "functools"} & set(bare.stdout.split())


def test_ctrl_c_before_the_program_begins_is_no_traceback():
    """The script of an installed command does a few things more between the import and the call."""
    code = "import os, aliquot.cli.entry; os.kill(os.getpid(), 2)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)

    assert (130, "") == (done.returncode, done.stderr)


SENT = "os.kill(os.getpid(), signal.SIGINT)"


@pytest.mark.parametrize(
    ("body", "status", "output"),
    [
        # An extension module may answer the interrupt with an error of its own.
        (f"try: {SENT}\n    except KeyboardInterrupt: raise TypeError('what?') from None", 130, ""),
        # The interpreter has callbacks that it lets raise nothing, in imports too; there it ends the program as well.
        (f"import weakref; x = set(); r = weakref.ref(x, lambda _: {SENT}); del x; print('on')", 130, ""),
        # A program that a shell started in the background is not ended by the terminal's Ctrl-C.
        (f"signal.signal(signal.SIGINT, signal.SIG_IGN); interruptible(lambda: {SENT})", 0, ""),
        # Without Ctrl-C an error is shown whole.
        ("raise TypeError('what?')", 1, "Traceback"),
    ],
    ids=["an error it caused", "in a callback", "ignored", "a defect"],
)
def test_ctrl_c_ends_a_program_without_a_traceback(body: str, status: int, output: str):
    """Whatever becomes of the interrupt in it; the traceback of a defect stays."""
    lines = ["import os, signal", "from aliquot.cli.entry import interruptible", "def program():", f"    {body}"]
    code = "\n".join([*lines, "interruptible(program)"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)

    assert (status, output) == (done.returncode, (done.stdout + done.stderr)[: len("Traceback")])


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_error(closed: str):
    """A program ends with the same status where the caller closed a standard stream."""
    program = f"exec {sys.executable} -m aliquot.cli --version {closed}"
    done = subprocess.run(["sh", "-c", program], capture_output=True, text=True, timeout=30)

    assert (0, "") == (done.returncode, done.stderr)


def test_no_file_gets_the_number_of_a_closed_stream():
    """What a program opens later has a number above those of the standard streams."""
    code = "import os; from aliquot.cli import entry; entry.interruptible(lambda: os._exit(os.open(os.devnull, 0)))"
    done = subprocess.run(["sh", "-c", f'exec {sys.executable} -c "$1" <&- >&-', "sh", code], timeout=30)

    assert done.returncode >= 3
