"""The ways to install that docs/install.md names, each with the release wheel, in an empty home."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from wheels import build

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
UV = Path(sys.prefix) / "bin" / "uv"
# By command, the extra that it needs.
NEEDS = {
    ("scheduler", "--kubeconfig", "none"): "cluster",
    ("node", "--emulate", "v100"): "cluster",
    ("scheduler", "--otlp-endpoint", "http://127.0.0.1:9"): "cluster",
}

TOTAL = """
import ctypes
cuda, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
assert [0, 0] == [cuda.cuInit(0), cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)]
print(total.value >> 20)
"""


class Home:
    """An empty home, with the registry that this machine is set up for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {key: os.environ[key] for key in os.environ if key.startswith(("PIP_", "UV_", "SSL_", "REQUESTS_"))}
        kept.pop("UV_PROJECT_ENVIRONMENT", None)
        self.variables = kept | {
            "HOME": str(folder),
            "PATH": f"{folder / '.local' / 'bin'}:{Path(sys.executable).resolve().parent}:/usr/bin:/bin",
            "ALIQUOT_RUNTIME_DIR": str(folder / "run"),
        }

    def __call__(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs a program in the home."""
        command = [str(word) for word in words]
        return subprocess.run(command, capture_output=True, text=True, env=self.variables, cwd=self.folder, timeout=600)

    def done(self, *words: str | Path) -> str:
        """What a program printed; it ended well."""
        run = self(*words)
        assert 0 == run.returncode, run.stdout[-2000:] + run.stderr[-4000:]
        return run.stdout


def by_pip(home: Home, wheel: str) -> str:
    """An environment, and pip in it."""
    home.done(sys.executable, "-m", "venv", home.folder / "env")
    home.done(home.folder / "env" / "bin" / "pip", "install", "--quiet", wheel)
    return str(home.folder / "env" / "bin" / "aliquot")


def by_uv_tool(home: Home, wheel: str) -> str:
    """`uv tool install`, with an environment of its own that has no pip."""
    home.done(UV, "tool", "install", "--quiet", "--python", sys.executable, wheel)
    return str(home.folder / ".local" / "bin" / "aliquot")


def by_pipx(home: Home, wheel: str) -> str:
    """`pipx install`, with pipx from the registry."""
    home.done(sys.executable, "-m", "venv", home.folder / "pipx")
    home.done(home.folder / "pipx" / "bin" / "pip", "install", "--quiet", "pipx")
    home.done(home.folder / "pipx" / "bin" / "pipx", "install", "--quiet", wheel)
    return str(home.folder / ".local" / "bin" / "aliquot")


WAYS = (by_pip, by_uv_tool, by_pipx)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("x86_64", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: way.__name__)
def installed(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Home, str]:
    """A home in which the wheel was installed without extras, and the command."""
    way: Callable[[Home, str], str] = request.param
    home = Home(tmp_path_factory.mktemp("home"))
    return home, way(home, str(wheel))


def test_a_program_runs_under_its_share(installed: tuple[Home, str]):
    """The command is found, is whole, and gives a program its memory on an emulated GPU."""
    home, aliquot = installed
    share = ("run", "--emulate", "h100", "--gpu-request", ".3", "--gpu-mem", "1Gi")

    assert home.done(aliquot, "--version").startswith("aliquot")
    assert "1024\n" == home.done(aliquot, *share, "--", sys.executable, "-c", TOTAL)


@pytest.mark.parametrize("words", NEEDS, ids=lambda words: " ".join(words[:2]))
def test_a_command_that_needs_an_extra_says_how_to_add_it(installed: tuple[Home, str], words: tuple[str, ...]):
    """One sentence names the extra and the command for this environment; nothing is installed from elsewhere."""
    home, aliquot = installed
    run = home(aliquot, *words)

    assert (1, 1) == (run.returncode, len(run.stderr.splitlines())), run.stderr
    assert f".whl[{NEEDS[words]}]'" in run.stderr


def adding(home: Home, aliquot: str, words: tuple[str, ...]) -> str:
    """Does what the sentence of a command says, and returns it."""
    named = home(aliquot, *words).stderr.partition("not installed: ")[2].strip()
    own = [str(Path(aliquot).parent), str(UV.parent), str(home.folder / "pipx" / "bin")]
    home.variables["PATH"] = ":".join([*own, home.variables["PATH"]])
    home.done("sh", "-c", named)
    return named


def test_the_command_that_is_named_adds_the_extra(installed: tuple[Home, str]):
    """After the named command the scheduler starts, and misses its cluster instead of a module."""
    home, aliquot = installed
    words = ("scheduler", "--kubeconfig", "none")

    assert ".whl[cluster]'" in adding(home, aliquot, words)
    assert "kubeconfig" in home(aliquot, *words).stderr


def test_the_command_that_is_named_adds_the_laboratory(installed: tuple[Home, str]):
    """Without aliquot-lab its commands say in one sentence what to install, with status 2; then they are there."""
    home, aliquot = installed
    run = home(aliquot, "sim", "turns", "--list")

    assert (2, 1) == (run.returncode, len(run.stderr.splitlines())), run.stderr
    assert "aliquot_lab-" in adding(home, aliquot, ("sim", "turns", "--list"))
    assert "irregular" in home.done(aliquot, "sim", "turns", "--list")
