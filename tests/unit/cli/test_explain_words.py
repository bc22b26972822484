"""`aliquot explain` without an engine: what it takes, and what it refuses in one sentence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.model.requests import Device
from aliquot.placement.cluster import Cluster, NodeSpec
from aliquot.placement.saved import dump

EXAMPLE = Path(__file__).resolve().parents[3] / "examples"


def explain(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command and keep what it says."""
    command = [sys.executable, "-m", "aliquot.cli", "explain", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["pod", "--gpu-request", "1"], "explain one thing at a time"),
        (["--books", "/nonexistent", "--gpu-request", "1"], "/nonexistent cannot be read"),
        (["--books", __file__, "--gpu-request", "1"], f"--books {__file__}: not the ledger of a cluster"),
        (["--books", "x", "--emulate", "v100", "--gpu-request", "1"], "on one thing at a time"),
        (["--policy", "gaia"], "a running engine has its own policy"),
        (["--emulate", "v100"], "is an empty machine; give a request"),
        (["--emulate", "voodoo2", "--gpu-request", "1"], "known are"),
        (["--emulate", "v100", "--gpu-request", "1", "--policy", "best"], 'no policy "best"; there are aliquot, '),
        (["--emulate", "v100", "--gpu-request", "-1"], "is not a fraction of a GPU"),
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


def test_a_saved_cluster_is_explained(tmp_path):
    """With --books a request is explained against a whole cluster that was saved."""
    nodes = [
        NodeSpec(f"node-{n}", tuple(Device(g, f"GPU-{n}-{g}", "NVIDIA A10", 23028) for g in range(2))) for n in range(3)
    ]
    file = tmp_path / "ledger.json"
    file.write_text(json.dumps(dump(Cluster(nodes))))
    fits = explain("--books", str(file), "--gpu-request", "0.5", "--policy", "binpack")
    waits = explain("--books", str(file), "--gpu-request", "3")

    assert "3 of 3 nodes have room; the next best is " in fits.stdout
    assert [
        "the request waits: asks 3 GPUs close to each other, none of 3 nodes has that much free.",
        "  3 nodes  has 2 GPUs, 3 were asked  (cannot change)",
        "Nearest: ask 1.00 GPU less, and it fits on node-0.",
    ] == waits.stdout.splitlines()[:3]
