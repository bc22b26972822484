"""C programs of tests."""

import shutil
import subprocess
from pathlib import Path

import pytest


def compile_c(target: Path, *words: object) -> Path:
    """Compile sources, with further options, by the machine's C compiler; skip without one."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    subprocess.run([compiler, "-w", "-O1", "-pthread", "-o", target, *map(str, words), "-ldl"], check=True)
    return target
