"""Programs on the CUDA runtime library, and an emulated H100 to run them on."""

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpuruns import Room

from aliquot.driver.native import EMULATED_CUDA, HOOK, NativePartMissing, native_part

PROGRAMS = Path(__file__).with_name("programs")


def toolkit() -> Path:
    """The folder of the CUDA compiler's wheel."""
    for folder in importlib.util.find_spec("nvidia").submodule_search_locations or ():
        if (Path(folder) / "cu13" / "bin" / "nvcc").exists():
            return Path(folder) / "cu13"
    pytest.skip("nvcc is not here: it comes with make dev (nvidia-cuda-nvcc)")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory):
    """Compiles a program with the runtime library inside (`static`) or beside it (`shared`)."""
    if not shutil.which("g++"):
        pytest.skip("nvcc needs a C++ compiler of the machine, and there is no g++")
    made: dict[tuple[str, str], Path] = {}

    def build(name: str, cudart: str) -> Path:
        if (name, cudart) not in made:
            home, program = toolkit(), tmp_path_factory.mktemp("nvcc") / name
            link = ["-cudart", "static"]
            if cudart == "shared":  # the wheel has no libcudart.so to link with, only the library itself
                link = ["-cudart", "none", "-Xlinker", "-l:libcudart.so.13", "-Xlinker", f"-rpath={home / 'lib'}"]
            command = [
                home / "bin" / "nvcc",
                "-arch=sm_90",
                *link,
                f"-L{home / 'lib'}",
                "-o",
                program,
                PROGRAMS / f"{name}.cu",
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            made[name, cudart] = program
        return made[name, cudart]

    return build


@pytest.fixture(scope="module")
def room() -> Iterator[Room]:
    """One emulated H100."""
    try:
        native_part(HOOK), native_part(EMULATED_CUDA)
        one = Room("h100")
    except NativePartMissing as missing:
        pytest.skip(str(missing))
    yield one
    one.close()
