"""`kubectl aliquot`: the GPUs of a cluster, who has which part of them, and why a pod waits.

kubectl finds the program `kubectl-aliquot` on the PATH and passes it everything after its name.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click
from click.shell_completion import CompletionItem, ShellComplete

from aliquot.cli.examples import KUBECTL_EXAMPLES, with_example
from aliquot.cli.main import run_group

# name -> (module, what --help says; kept here so that the list of commands imports none of them)
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "get": ("get", "List gpus, sharepods, vgpus or quota."),
    "top": ("top", "Show who uses the GPUs, as it happens."),
    "explain": ("explain", "Tell why a pod waits, or where it is."),
    "inspect": ("inspect", "Compare the scheduler's books with what the pods say."),
    "topo": ("topo", "Show which GPUs of a node are near each other, and what is free."),
    "doctor": ("doctor", "Tell whether the cluster is set up right."),
}


class Commands(click.Group):
    """A group that imports a command when it is called for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, imported now."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"{__name__}.{COMMANDS[cmd_name][0]}"), cmd_name)
        assert isinstance(command, click.Command)
        return with_example(cmd_name, command, KUBECTL_EXAMPLES)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands from the table, so that a Tab imports none of them."""
        words = [(name, text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=text) for name, text in words), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list for --help, from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="aliquot", prog_name="kubectl aliquot")
def cli() -> None:
    """The shared GPUs of a Kubernetes cluster."""


def complete() -> None:
    """The entry point of `kubectl_complete-aliquot`, which kubectl runs at a Tab after `kubectl aliquot`.

    kubectl gives the words, the last of them incomplete, and reads lines of `word<TAB>what it is` and a line with a
    number, of which 4 says that no file names are wanted.
    """
    import sys

    *before, last = sys.argv[1:] or [""]
    for item in ShellComplete(cli, {}, "kubectl aliquot", "_KUBECTL_ALIQUOT").get_completions(before, last):
        click.echo(f"{item.value}\t{item.help or ''}".rstrip("\t"))
    click.echo(":4")


def main() -> None:
    """The entry point of the console script `kubectl-aliquot`."""
    run_group(cli, "kubectl aliquot")
