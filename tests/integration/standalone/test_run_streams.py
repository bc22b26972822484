"""`aliquot run` where standard streams are closed, or the other end of one is gone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .stage import Aliquot


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


def test_an_engine_whose_run_is_gone_ends_without_a_word(aliquot_cli: Aliquot):
    """An engine whose run was interrupted while it started ends in order, and writes nothing into its log."""
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-m", "aliquot.standalone.daemon", "--runtime-dir", str(aliquot_cli.runtime)]
    try:
        done = subprocess.run(
            [*argv, "--emulate", "v100"], stdout=writer, stderr=subprocess.PIPE, text=True, env=aliquot_cli.env,
            timeout=60,
        )  # fmt: skip
    finally:
        os.close(writer)

    assert (0, "") == (done.returncode, done.stderr)
