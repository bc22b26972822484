"""Options and files that a script left empty or closed are refused in one sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from aliquot.cli.main import cli
from aliquot.model.errors import UserError


@pytest.mark.parametrize("option", ["--gpu", "--gpu-id", "--gpu-model", "--affinity", "--anti-affinity", "--exclusion"])
def test_an_option_that_names_something_is_not_empty(option: str):
    """As from a variable that is not set: it would ask for any GPU where one was meant."""
    with pytest.raises(UserError, match=f"^{option} is empty; name one, or leave the option out$"):
        CliRunner().invoke(cli, ["explain", option, ""], standalone_mode=False, catch_exceptions=False)


@pytest.mark.parametrize("command", ["apply", "explain", "delete"])
def test_a_closed_standard_input_is_said(command: str):
    """Status 2 and one sentence."""
    line = f'exec "{sys.executable}" -m aliquot.cli {command} -f - <&-'
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=30)

    assert (2, "aliquot: - cannot be read: standard input is closed\n") == (done.returncode, done.stderr)
