"""Tab, and the examples in --help."""

import os
import shlex
import shutil
import subprocess
import sys

import click
import pytest

from aliquot.cli.main import COMMANDS, cli
from aliquot_lab import cli as lab


def completed(*words: str) -> list[str]:
    """What bash is offered after these words, the last of them incomplete."""
    env = os.environ | {
        "_ALIQUOT_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["aliquot", *words]),
        "COMP_CWORD": str(len(words)),
        "ALIQUOT_RUNTIME_DIR": "/nonexistent/aliquot",
    }
    code = "from aliquot.cli.main import cli; cli.main(prog_name='aliquot')"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "" == done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


D_COMMANDS = [name for name in [*COMMANDS, *lab.COMMANDS] if name.startswith("d")]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["d"], D_COMMANDS),
        (["up", "--emulate", "a"], ["a100", "a100-80g"]),
        (["sim", "run", "--policy", "binpack,sp"], ["binpack,spread"]),
        (["get", "po"], ["pods", "pod", "po"]),
        (["logs", ""], []),
    ],
    ids=["commands", "profiles", "policies after the last comma", "kinds", "names, which need an engine"],
)
def test_what_may_come_next_is_offered(words: list[str], offered: list[str]):
    """Every word that begins so and may stand there."""
    assert sorted(offered) == sorted(completed(*words))


def test_options_are_offered():
    """A command's options are offered after it."""
    assert {"--port", "--no-web", "--emulate"} <= set(completed("up", "--"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_of_that_shell(shell: str):
    """Each script is read by its shell without complaint, where that shell is installed, and names the command."""
    done = subprocess.run([sys.executable, "-m", "aliquot.cli", "completion", shell], capture_output=True, text=True)
    assert 0 == done.returncode and "_ALIQUOT_COMPLETE" in done.stdout and "aliquot" in done.stdout
    if shutil.which(shell):
        flags = ["--no-execute"] if shell == "fish" else ["-n"]
        read = subprocess.run([shell, *flags], input=done.stdout, capture_output=True, text=True)
        assert (0, "") == (read.returncode, read.stderr)


def example_of(name: str) -> str:
    """How the example is written with which a command's help ends."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None and command.epilog, f"{name} has no example at the end of its docstring"
    return command.epilog.rpartition("\n")[2].strip()


@pytest.mark.parametrize("name", COMMANDS | lab.COMMANDS)
def test_every_example_is_understood(name: str):
    """Each command has an example, which is accepted by the very command that it is an example of."""
    words = shlex.split(example_of(name).replace('"$(', "").replace(')"', "").replace("eval ", ""))
    assert ["aliquot", name] == words[:2]
    command: click.Command | None = cli
    rest = words[1:]
    context = click.Context(cli, info_name="aliquot")
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        command, rest = command.get_command(context, rest[0]), rest[1:]
    assert command is not None
    if "--help" not in rest:
        command.make_context(name, list(rest))


def test_help_ends_with_the_example():
    """The example stands in the help as it is written, on a line of its own."""
    done = subprocess.run([sys.executable, "-m", "aliquot.cli", "up", "--help"], capture_output=True, text=True)

    assert done.stdout.splitlines()[-1] == f"    {example_of('up')}"
