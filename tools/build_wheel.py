"""Build the release wheels for one processor and check them: native parts against glibc 2.17, compiled by zig.

zig's clang carries the old glibc's symbol versions, so the wheels run on every distribution since CentOS 7, and build
for another processor too. Neither a compiler nor binutils is needed on the machine; compiler, CMake and ninja come as
wheels, the compiler at the version of uv.lock.

    tools/build_wheel.py [--arch aarch64] [--out dist]      aliquot-gpu, and aliquot-lab with simulator and benchmarks
    tools/build_wheel.py --package aliquot-gpu              for images of a cluster, which have no laboratory
    tools/build_wheel.py --without-cuda-runtime             the emulated driver then refuses PyTorch and the like
    tools/build_wheel.py --check dist/*.whl
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

from check_wheel import ARCHITECTURES, faults, readable, report

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".venv" / "bin" / "uv"
GLIBC = "2_17"
PACKAGES = ("aliquot-gpu", "aliquot-lab")


def build(package: str, arch: str, out: Path, cuda_runtime: bool = True) -> Path:
    """The wheel of this distribution for this processor, in `out`.

    Raises:
        subprocess.CalledProcessError: uv or the compiler failed, and has said why.
    """
    compilers = ROOT / "build" / "release-tools"
    locked = ("--frozen", "--only-group", "release", "--no-install-project", "--quiet")
    _run([UV, "sync", *locked], UV_PROJECT_ENVIRONMENT=str(compilers))
    settings = {
        "wheel.tags": f"py3-none-manylinux_{GLIBC}_{arch}",
        "build-dir": str(ROOT / "build" / f"wheel-{package}-{arch}"),
        "cmake.define.CMAKE_SYSTEM_NAME": "Linux",
        "cmake.define.CMAKE_SYSTEM_PROCESSOR": arch,
        # docs/decisions/0022-cuda-runtime-programs.md
        "cmake.define.ALIQUOT_CUDA_RUNTIME": "ON" if cuda_runtime else "OFF",
        # The linker leaves the symbols out: strip of this machine does not know the other one's files.
        "install.strip": "false",
    }
    given = [part for key, value in settings.items() for part in ("-C", f"{key}={value}")]
    name = f"{package.replace('-', '_')}-*_{arch}.whl"
    for old in out.glob(name):
        old.unlink()
    _run(
        [UV, "build", "--package", package, "--wheel", "--out-dir", out, *given],
        CC=str(ROOT / "tools" / "zigcc"),
        LDFLAGS="-Wl,-s",
        ALIQUOT_ARCH=arch,
        ALIQUOT_ZIG_PYTHON=str(compilers / "bin" / "python"),
    )
    (made,) = out.glob(name)
    return made


def _run(command: list[str | Path], **environment: str) -> None:
    subprocess.run([str(part) for part in command], cwd=ROOT, check=True, env={**os.environ, **environment})


def main() -> int:
    """Build, or only look at wheels that are there; status 1 when one of them is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=sorted(ARCHITECTURES), default=platform.machine())
    parser.add_argument("--package", choices=PACKAGES, help="Only this one.")
    parser.add_argument(
        "--without-cuda-runtime", action="store_true", help="Leave out what programs on the CUDA runtime need."
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR")
    parser.add_argument("--check", type=Path, nargs="+", metavar="WHEEL", help="Build nothing, look at these.")
    chosen = parser.parse_args()
    if not chosen.check and not UV.exists():
        print("aliquot: no wheel: .venv has no uv; build it with make wheel", file=sys.stderr)
        return 1
    try:
        packages = [chosen.package] if chosen.package else PACKAGES
        wheels = chosen.check or [
            build(package, chosen.arch, chosen.out.resolve(), not chosen.without_cuda_runtime) for package in packages
        ]
    except subprocess.CalledProcessError as error:
        print(
            f"aliquot: no wheel for {chosen.arch}: `{Path(error.cmd[0]).name} {error.cmd[1]}` failed", file=sys.stderr
        )
        return 1
    found = [fault for wheel in wheels for fault in faults(wheel)]
    for wheel in filter(readable, wheels):
        print(report(wheel))
    for fault in found:
        print(f"aliquot: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
