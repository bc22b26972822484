"""Release wheels, built as `make wheel` does; or those of the folder ALIQUOT_WHEELS, which are to be handed out."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def build(arch: str, into: Path) -> Path:
    """The wheel of aliquot-gpu for a processor, in this folder; that of aliquot-lab lies beside it."""
    if ready := os.environ.get("ALIQUOT_WHEELS"):
        return next(Path(ready).glob(f"aliquot_gpu-*_{arch}.whl"))
    command = [sys.executable, str(ROOT / "tools" / "build_wheel.py"), "--arch", arch, "--out", str(into)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert 0 == done.returncode, done.stderr
    (wheel,) = into.glob(f"aliquot_gpu-*_{arch}.whl")
    return wheel


def laboratory(wheel: Path) -> Path:
    """The wheel of aliquot-lab beside that of aliquot-gpu."""
    return wheel.with_name(wheel.name.replace("aliquot_gpu", "aliquot_lab"))
