"""The native parts as a release has them: those of the wheel that `make wheel` builds."""

import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from cluster import cache
from cluster.cache import Unavailable, say

from aliquot.driver.native import EMULATED_CUDA, EMULATED_NVML, HOOK

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "tools" / "build_wheel.py"
IN_WHEEL = "aliquot/native/"


def release_parts() -> Path:
    """A folder such as `ALIQUOT_NATIVE_DIR` names; made if it is not in the cache.

    Raises:
        Unavailable: the compiler cannot be had, or the wheel does not build.
    """
    sources = sorted(path for path in (ROOT / "native").rglob("*") if path.suffix in (".c", ".h", ".S", ".txt", ".map"))
    facts = [path.read_bytes() for path in (*sources, ROOT / "CMakeLists.txt", BUILD, ROOT / "tools" / "zigcc")]
    return cache.kept(f"release-{cache.key(*facts)}", _make)


def _make(into: Path) -> None:
    say("building the release wheel, once (its compiler is 100 MB)")
    wheels = into / "wheels"
    words = ["nice", "-n", "10", sys.executable, str(BUILD), "--arch", platform.machine(), "--out", str(wheels)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"`make wheel` failed: {(done.stderr or done.stdout).strip()[-600:]}")
    (wheel,) = wheels.glob("*.whl")
    (into / "emulator").mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for part in (HOOK, EMULATED_CUDA, EMULATED_NVML):
            (into / part).write_bytes(archive.read(f"{IN_WHEEL}{part}"))
    shutil.rmtree(wheels)
