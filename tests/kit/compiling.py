"""C programs of tests; driver.h is what most of them begin with."""

import shutil
import subprocess
from pathlib import Path

import pytest


def compile_c(target: Path, *words: object) -> Path:
    """Compile sources, which may include driver.h, by the machine's C compiler, with options; skip without one."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    flags = ["-w", "-O1", "-pthread", f"-I{Path(__file__).parent}"]
    subprocess.run([compiler, *flags, "-o", target, *map(str, words), "-ldl"], check=True)
    return target
