"""`aliquot run` where standard streams are closed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Aliquot


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_command_runs_where_a_stream_is_closed(aliquot_cli: Aliquot, tmp_path: Path, number: int):
    """The command gets /dev/null in place of the stream that was closed, and its status is the run's."""
    note = tmp_path / "note"
    command = ["sh", "-c", f"found=$(readlink /proc/$$/fd/{number}); echo $found > {note}; exit 5"]
    run = [sys.executable, "-m", "aliquot.cli", "run", "--emulate", "v100", "--gpu-request", ".3", "--", *command]
    closed = ["sh", "-c", f'exec "$@" {number}>&-', "sh", *run]
    done = subprocess.run(closed, capture_output=True, text=True, env=aliquot_cli.env, timeout=60)

    assert (5, "") == (done.returncode, done.stderr)
    assert "/dev/null\n" == note.read_text()
