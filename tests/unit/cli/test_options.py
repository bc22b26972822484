"""Options and files that a script left empty or closed are refused in one sentence."""

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from aliquot.cli.kubectl import cli as kubectl
from aliquot.cli.main import cli
from aliquot.cli.options import out_option
from aliquot.model.errors import UserError


def text_options() -> Iterator[tuple[str, str, str]]:
    """(program, command, option) of every option that takes a text."""
    for program, group in (("aliquot", cli), ("kubectl aliquot", kubectl)):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            for option in [] if isinstance(command, click.Group) else command.params:
                if isinstance(option, click.Option) and not option.is_flag and option.type.name != "choice":
                    yield program, name, option.opts[0]


@pytest.mark.parametrize("value", ["", " ", ","])
def test_an_option_that_names_something_is_not_empty(value: str):
    """As from a variable that is not set: it would stand for any GPU, file or name where one was meant."""
    accepted = []
    for program, name, option in text_options():
        group = cli if program == "aliquot" else kubectl
        try:
            CliRunner().invoke(group, [name, option, value], standalone_mode=False, catch_exceptions=False)
        except UserError as error:
            if str(error) == f"{option} is empty; name one, or leave the option out":
                continue
        accepted.append((program, name, option))

    assert [] == accepted


@pytest.mark.parametrize(
    ("folder", "sentence"),
    [
        ("/proc/x", "--out /proc/x cannot be written: "),
        (f"{__file__}/x", f"--out {__file__}/x: {__file__} is a file; name a folder"),
        ("x" * 3000, "cannot be written: file name too long; name a folder of yours"),
    ],
)
def test_a_folder_that_cannot_be_written_is_refused_before_work_begins(folder: str, sentence: str):
    """Results of a long run are not lost because of where they were to go."""

    @click.command()
    @out_option("Folder.")
    def work(out: str) -> None:
        pytest.fail(f"works for {out}")

    with pytest.raises(UserError) as refused:
        CliRunner().invoke(work, ["--out", folder], standalone_mode=False, catch_exceptions=False)

    assert sentence in str(refused.value)


@pytest.mark.parametrize("command", ["apply", "explain", "delete"])
def test_a_closed_standard_input_is_said(command: str):
    """Status 2 and one sentence."""
    line = f'exec "{sys.executable}" -m aliquot.cli {command} -f - <&-'
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=30)

    assert (2, "aliquot: - cannot be read: standard input is closed\n") == (done.returncode, done.stderr)


def test_a_folder_that_is_required_is_missed_before_work_begins():
    """No simulation runs to its end to find then that its results have nowhere to go."""

    @click.command()
    @out_option("Folder.", required=True)
    def work(out: str) -> None:
        pytest.fail(f"works for {out}")

    with pytest.raises(click.MissingParameter, match="out"):
        CliRunner().invoke(work, [], standalone_mode=False, catch_exceptions=False)
