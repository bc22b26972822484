"""The native parts as a release has them: compiled by zig against glibc 2.17's symbols."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from cluster import cache
from cluster.cache import Unavailable, say

from aliquot.driver.native import EMULATED_CUDA, EMULATED_NVML, HOOK

ROOT = Path(__file__).resolve().parents[3]
COMPILER = ROOT / "tools" / "zigcc"
TARGETS = ("aliquot_hook", "emulated_cuda", "emulated_nvml")


def release_parts() -> Path:
    """A folder such as `ALIQUOT_NATIVE_DIR` names; made if it is not in the cache.

    Raises:
        Unavailable: the compiler can not be had, or the parts do not build.
    """
    sources = sorted(path for path in (ROOT / "native").rglob("*") if path.suffix in (".c", ".h", ".S", ".txt", ".map"))
    facts = [path.read_bytes() for path in (*sources, ROOT / "CMakeLists.txt", COMPILER)]
    return cache.kept(f"release-{cache.key(*facts)}", _make)


def _make(into: Path) -> None:
    zig = cache.kept(f"zig-{cache.key((ROOT / 'uv.lock').read_bytes())}", _install_zig)
    say("building the native parts as for a release, once")
    build = into / "build"
    environment = {"CC": str(COMPILER), "ALIQUOT_ARCH": "x86_64", "ALIQUOT_ZIG_PYTHON": str(zig / "bin/python")}
    # Zig keeps what it compiled in its own folder.
    environment |= {"ZIG_GLOBAL_CACHE_DIR": str(build / "zig"), "ZIG_LOCAL_CACHE_DIR": str(build / "zig")}
    _run(["cmake", "-S", ROOT, "-B", build, "-G", "Ninja"], environment)
    _run(["cmake", "--build", build, "--parallel", "2", "--target", *TARGETS], environment)
    (into / "emulator").mkdir()
    for part in (HOOK, EMULATED_CUDA, EMULATED_NVML):
        (made,) = (path for path in build.rglob(Path(part).name) if not path.is_symlink())
        shutil.copy2(made, into / part)
    shutil.rmtree(build)


def _install_zig(into: Path) -> None:
    say("installing the release compiler, once (100 MB)")
    uv = Path(sys.executable).with_name("uv")
    locked = ["--frozen", "--only-group", "release", "--no-install-project", "--quiet"]
    _run([uv, "sync", *locked], {"UV_PROJECT_ENVIRONMENT": str(into)})


def _run(command: list[str | Path], environment: dict[str, str]) -> None:
    words = ["nice", "-n", "10", *map(str, command)]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"`{Path(words[3]).name} {words[4]}` failed: {(done.stderr or done.stdout).strip()[-600:]}")
