"""The command line before any engine is involved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.cli.main import COMMANDS
from aliquot.cli.top import BAR_CELLS, bar

ENGINE_FREE_COMMANDS = [name for name in COMMANDS if name != "arbiter"]


def aliquot(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command and keep what it says."""
    import os

    return subprocess.run(
        [sys.executable, "-m", "aliquot.cli", *words], capture_output=True, text=True, timeout=60, env=os.environ | env
    )


def test_help_imports_nothing_heavy():
    """`aliquot --help` loads no table, plot, array or YAML library."""
    code = (
        "import sys; from aliquot.cli.main import cli; cli.main(['--help'], standalone_mode=False);"
        "print(sorted({'rich', 'numpy', 'yaml', 'pynvml', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ENGINE_FREE_COMMANDS)
def test_every_command_in_the_table_has_help(command):
    """Every command that --help lists can be imported and explains itself."""
    done = aliquot(command, "--help")

    assert (0, True) == (done.returncode, done.stdout.startswith(f"Usage: aliquot {command}"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--gpu-request", ".5", "--gpu-limit", ".3", "--", "true"], "a limit is at least the request"),
        (["run", "--gpu-request", "lots", "--", "true"], '--gpu-request: "lots" is no fraction of a GPU'),
        (["run", "--gpu-mem", "4X", "--", "true"], '--gpu-mem: "4X" is no amount of memory'),
        (["run", "--emulate", "voodoo2", "--", "true"], "known are"),
        (["run", "--emulate", "v100x99", "--", "true"], "1 to 16"),
        (["run", "--cpu-bind", "99999", "--emulate", "v100", "--", "true"], "ask for at most those"),
        (["run"], "Missing argument"),
        (["run", "--name", "a\nlibcuda=/x", "--", "true"], "no name for a tenant"),
        (["apply", "-f", "/nonexistent.yaml"], "/nonexistent.yaml can not be read: no such file or directory"),
        (["frobnicate"], "No such command"),
        (["run", "--no-such-option"], "No such option"),
        (["delete"], "name one SharePod"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_status_2(words, sentence, tmp_path):
    """A mistake of the user's ends with status 2 and one line that begins with the program's name."""
    done = aliquot(*words, ALIQUOT_RUNTIME_DIR=str(tmp_path / "r"))

    assert done.returncode == 2
    assert sentence in done.stderr
    assert (1, True) == (len(done.stderr.splitlines()), done.stderr.startswith("aliquot: "))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1, 2", "not readable as YAML: line 1"),
        ("", "there is no SharePod in "),
        ("just text", "a SharePod is a mapping"),
        ("apiVersion: aliquot.dev/v1alpha1\nkind: SharePod\nmetadata: {name: a}\nspec: {gpu: {reqest: 1}}", "reqest"),
    ],
)
def test_a_file_that_is_no_sharepod_is_refused_without_an_engine(text, sentence, tmp_path):
    """Bad YAML is told as such whether or not an engine is up."""
    file = tmp_path / "pod.yaml"
    file.write_text(text)
    done = aliquot("apply", "-f", str(file), ALIQUOT_RUNTIME_DIR=str(tmp_path / "r"))

    assert (2, True, 1) == (done.returncode, sentence in done.stderr, len(done.stderr.splitlines()))


@pytest.mark.parametrize("words", [["get"], ["top"], ["logs", "a"], ["describe", "a"], ["delete", "a"]])
def test_without_an_engine_the_way_to_one_is_told(words, tmp_path):
    """What needs an engine says how to start one and ends with status 1."""
    done = aliquot(*words, ALIQUOT_RUNTIME_DIR=str(tmp_path / "r"))

    assert (1, True) == (done.returncode, "Start one: aliquot up" in done.stderr)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has an NVIDIA driver")
def test_without_gpu_and_emulation_the_emulation_is_offered(tmp_path):
    """A run on a machine without a driver says so and offers an emulated GPU."""
    done = aliquot("run", "--", "true", ALIQUOT_RUNTIME_DIR=str(tmp_path / "r"))

    assert (1, True) == (done.returncode, "--emulate v100" in done.stderr)


@pytest.mark.parametrize(("usage", "limit"), [(0.0, 300), (0.5, 1000), (1.0, 999), (1.2, 1000)])
def test_a_bar_is_always_as_wide(usage, limit):
    """The usage bar keeps its width while it refreshes."""
    assert len(bar(usage, limit)) == BAR_CELLS
