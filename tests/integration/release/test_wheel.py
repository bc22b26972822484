"""The release wheel: built by zig, installed where there is no compiler, and used."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import files
from pathlib import Path

import pytest
from wheels import ROOT, build, laboratory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
# What every Linux with glibc has; a wheel brings nothing of its own and may ask for nothing else.
OF_LIBC = {"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}
RUNTIME_TOTAL = """
import ctypes, sys
runtime, free, total = ctypes.CDLL(sys.argv[1]), ctypes.c_size_t(), ctypes.c_size_t()
assert 0 == runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)), runtime.cudaGetLastError()
print(total.value >> 20)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("x86_64", tmp_path_factory.mktemp("x86"))


@pytest.fixture(scope="module")
def arm_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For 64-bit ARM, from this machine."""
    return build("aarch64", tmp_path_factory.mktemp("arm"))


def native(wheel: Path, into: Path) -> dict[str, Path]:
    """A wheel's native parts, unpacked; by their names in it."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("aliquot/native/")]
        return {name.removeprefix("aliquot/native/"): Path(archive.extract(name, into)) for name in names}


def readelf(*arguments: str | Path) -> str:
    """What binutils' readelf says of a file."""
    return subprocess.run(["readelf", "--wide", *arguments], capture_output=True, text=True, check=True).stdout


class Environment:
    """An environment with the wheel in it and nothing of this machine on PATH but Python."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
        kept = {key: os.environ[key] for key in os.environ if key.startswith(("PIP_", "SSL_")) or key == "HOME"}
        self.variables = kept | {
            "PATH": str(folder / "env" / "bin"),
            "ALIQUOT_RUNTIME_DIR": str(folder / "run"),
            "LD_LIBRARY_PATH": "",
        }
        # Nothing may be compiled on the way either.
        done = self("pip", "install", "--quiet", "--only-binary", ":all:", str(wheel), str(laboratory(wheel)))
        assert 0 == done.returncode, done.stderr

    def __call__(self, *words: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment."""
        command = [str(self.folder / "env" / "bin" / words[0]), *words[1:]]
        return subprocess.run(
            command, capture_output=True, text=True, env=self.variables, cwd=self.folder, timeout=900, **options
        )  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel and the laboratory's in an environment that was empty."""
    return Environment(tmp_path_factory.mktemp("installed"), wheel)


def test_native_parts_run_on_an_old_glibc(wheel: Path, tmp_path: Path):
    """Every symbol version that a native part asks for is in glibc 2.17, and every library is glibc's."""
    for name, path in native(wheel, tmp_path).items():
        versions = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", readelf("--version-info", path))
        libraries = set(re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("--dynamic", path)))

        assert (2, 17) >= max(((int(major), int(minor)) for major, minor in versions), default=(0, 0)), name
        assert set() == libraries - OF_LIBC, name


def test_no_compiler_is_needed(installed: Environment):
    """Where no compiler is to be found the wheel installs, and the command says its version."""
    nothing = [name for name in ("cc", "gcc", "clang", "c++") if shutil.which(name, path=installed.variables["PATH"])]

    assert [] == nothing
    assert 0 == installed("aliquot", "--version").returncode


def test_doctor_finds_the_native_parts(installed: Environment):
    """`aliquot doctor` finds hook and emulated driver inside the environment."""
    findings = {f["what"]: f for f in json.loads(installed("aliquot", "doctor", "-o", "json").stdout)["findings"]}

    for what in ("hook", "emulated CUDA", "emulated NVML"):
        assert "ok" == findings[what]["state"]
        assert findings[what]["found"].startswith(str(installed.folder))


@pytest.mark.parametrize("package", ["nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"])
def test_a_program_on_the_cuda_runtime_runs(installed: Environment, package: str):
    """NVIDIA's runtime library accepts the emulated driver of the wheel, and sees the share's memory."""
    (runtime,) = [file.locate() for file in files(package) or () if file.name.startswith("libcudart.so.")]
    share = ("--emulate", "h100", "--gpu-request", ".3", "--gpu-mem", "4Gi")
    done = installed("aliquot", "run", *share, "--", "python", "-c", RUNTIME_TOTAL, str(runtime))

    assert ("4096\n", 0) == (done.stdout, done.returncode), done.stderr


def test_a_build_without_the_cuda_runtime_names_the_other_build(tmp_path: Path):
    """The emulated driver refuses the table of the runtime then, and says once how to get the other build."""
    cmake = Path(sys.executable).with_name("cmake")
    if not cmake.exists():
        pytest.skip("cmake is not installed here")
    subprocess.run([cmake, "-S", ROOT, "-B", tmp_path, "-DALIQUOT_CUDA_RUNTIME=OFF"], check=True, capture_output=True)
    subprocess.run([cmake, "--build", tmp_path, "--target", "emulated_cuda"], check=True, capture_output=True)
    (library,) = tmp_path.rglob("libcuda.so.1")
    ask = """
import ctypes, sys, uuid
table = ctypes.c_void_p()
cuda = ctypes.CDLL(sys.argv[1])
for _ in range(2):
    print(cuda.cuGetExportTable(ctypes.byref(table), uuid.UUID("d4082055-bde6-704b-8d34-ba123c66e1f2").bytes))
"""
    done = subprocess.run([sys.executable, "-c", ask, library], capture_output=True, text=True, check=True)

    assert "500\n500\n" == done.stdout
    assert 1 == done.stderr.count("`make setup` or `make wheel`")


def test_the_arm_wheel_has_what_exists_for_arm(arm_wheel: Path, tmp_path: Path):
    """The wheel for aarch64 has the placement kernels for that processor and glibc 2.17, and nothing else native."""
    parts = native(arm_wheel, tmp_path)
    kernels = parts["libaliquot_kernels.so"]

    assert ["libaliquot_kernels.so"] == list(parts)
    assert "AArch64" in readelf("--file-header", kernels)
    assert {"2.17"} >= set(re.findall(r"Name: GLIBC_([\d.]+)", readelf("--version-info", kernels)))


def test_pip_takes_each_wheel_only_where_it_runs(arm_wheel: Path, installed: Environment):
    """Here pip refuses the wheel for ARM, by its name."""
    done = installed("pip", "install", "--no-deps", str(arm_wheel))

    assert (1, True) == (done.returncode, "not a supported wheel on this platform" in done.stderr)
