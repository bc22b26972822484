"""A program on two GPUs at once beside programs on one of them."""

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_time

PROGRAM = Path(__file__).parent / "programs" / "gang.py"


def test_a_launch_on_two_gpus_gets_both_at_once_and_shares_them(stage):
    """A gang of two GPUs and a tenant of one of them, each with a request of 0.5, both get it."""
    scene = stage(gpus="v100x2")
    folder = scene.tenant("gang", 500)
    argv = [sys.executable, str(PROGRAM), str(scene.directory / "gang.progress")]
    gang = scene.program(folder, argv, "gang").wait_ready()
    single = scene.client("single", 500).wait_ready()

    shares = scene.shares([gang, single], 2.5)

    assert min(shares) > 0.4 * sum(shares) > 0.2, shares
    assert [gang.end(), single.end()] == [0, 0]
    assert (gang.said, single.said) == ("", "")
