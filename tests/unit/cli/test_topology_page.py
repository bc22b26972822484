"""docs/topology.md shows what the commands print."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from aliquot.cli.main import cli

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "topology.md").read_text("utf-8")
SHOWN = re.findall(r"```[a-z ]*\n\$ aliquot (.*)\n((?:.*\n)*?)```\n", PAGE)


@pytest.mark.parametrize(("words", "printed"), SHOWN, ids=[words.split()[0] for words, _ in SHOWN])
def test_every_command_prints_what_the_page_shows(words, printed, tmp_path, monkeypatch):
    """A command of the page, run from the project's root, gives the very lines below it."""
    monkeypatch.chdir(ROOT)
    command = shlex.split(words)
    if "--out" in command:
        command[command.index("--out") + 1] = str(tmp_path)
    command = [file for word in command for file in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]
    done = CliRunner().invoke(cli, command, catch_exceptions=False)

    assert printed == done.output
    if "--out" in command:
        drawn = json.loads((tmp_path / "topology_churn.json").read_text())
        assert json.loads((ROOT / "docs/figures/topology_churn.json").read_text()) == drawn


def test_the_page_shows_the_tree_and_the_figures():
    """Both commands were found in the page."""
    assert ["topo", "bench"] == [words.split()[0] for words, _ in SHOWN]


def test_the_python_of_the_page_runs(monkeypatch):
    """The example in Python prints the best four of a DGX-1V among others."""
    monkeypatch.chdir(ROOT)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL).group(1), {})

    assert ["500 SYS (0, 1, 2, 3)", "(0, 1, 2, 3)", "1", "[1, 4]"] == printed.getvalue().splitlines()
