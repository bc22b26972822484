"""`aliquot explain` without an engine: what it takes, and what it refuses in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples"


def explain(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command and keep what it says."""
    command = [sys.executable, "-m", "aliquot.cli", "explain", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["pod", "--gpu-request", "1"], "explain one thing at a time"),
        (["--policy", "gaia"], "an engine that is up has its own policy"),
        (["--emulate", "v100"], "is an empty machine; give a request"),
        (["--emulate", "voodoo2", "--gpu-request", "1"], "known are"),
        (["--emulate", "v100", "--gpu-request", "1", "--policy", "best"], 'no policy "best"; there are aliquot, '),
        (["--emulate", "v100", "--gpu-request", "-1"], "is no fraction of a GPU"),
        (["--emulate", "v100", "--gpu-request", ".5", "--gpu-limit", ".2"], "a limit is at least the request"),
        (["--emulate", "v100x2", "--gpu-request", "2", "--affinity", "x"], 'affinity "x" means one device'),
    ],
)
def test_what_makes_no_sense_is_told_in_one_sentence(words, sentence):
    """A mistake ends with status 2 and one line."""
    done = explain(*words)

    assert (2, 1, True) == (done.returncode, len(done.stderr.splitlines()), sentence in done.stderr), done.stderr


def test_an_imagined_request_has_facts():
    """With -o json: whether it fits, where, and why."""
    done = explain("--emulate", "a100x8", "--policy", "gaia", "--gpu-request", "2.5", "-o", "json")
    (found,) = json.loads(done.stdout)

    assert (True, "gaia", "2.50 GPU close to each other") == (found["fits"], found["policy"], found["asks"])
    assert [1000, 1000, 500] == [piece["request_milli"] for piece in found["placement"]["slices"]]


def test_every_sharepod_of_a_file_is_explained():
    """With -f each SharePod of the file is explained by name."""
    file = sorted(EXAMPLE.glob("*.yaml"))[0]
    done = explain("--emulate", "v100x4", "-f", str(file))

    assert 0 == done.returncode, done.stderr
    assert done.stdout.startswith("default/")
