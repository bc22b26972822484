"""The commands that the simulator's pages show exist, with the options shown, and the example runs."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from aliquot_lab.cli.sim import sim

ROOT = Path(__file__).resolve().parents[3]
COMMAND = re.compile(r"^(?:\$ )?aliquot (sim .*)$", re.MULTILINE)
SHOWN = sorted(
    {line for page in ("simulator", "papers") for line in COMMAND.findall((ROOT / f"docs/{page}.md").read_text())}
)


@pytest.mark.parametrize("line", SHOWN)
def test_a_documented_command_is_understood(line: str):
    """Every option of a command in the docs exists and takes the value shown."""
    words = shlex.split(line)[1:]
    command: click.Command = sim
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found

    command.make_context("sim", words)


def test_the_example_runs(tmp_path):
    """The example's nodes and jobs give a complete study."""
    command = [
        sys.executable, "-m", "aliquot.cli.main", "sim", "run", "--nodes", "examples/sim/nodes.csv",
        "--trace", "examples/sim/jobs.csv", "--policy", "bestfit,aliquot", "--jobs", "1", "--out", str(tmp_path),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)

    assert (0, "") == (done.returncode, done.stderr)
    facts = json.loads((tmp_path / "summary.json").read_text())
    assert facts["complete"]
    assert [160, 160] == [row["mean"]["finished"] for row in facts["policies"]]
