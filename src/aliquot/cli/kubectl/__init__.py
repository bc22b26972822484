"""`kubectl aliquot`: the GPUs of a cluster, their tenants, and why a pod waits.

kubectl finds the program `kubectl-aliquot` on the PATH and passes it everything after its name.
"""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import ShellComplete

from aliquot.cli.lazy import LazyGroup
from aliquot.cli.main import run_group
from aliquot.model.extras import PACKAGE

# name -> (module, what --help says)
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "get": (f"{__name__}.get", "List gpus, sharepods, vgpus, quota or hours."),
    "top": (f"{__name__}.top", "Show the use of the GPUs, live."),
    "explain": (f"{__name__}.explain", "Explain why a pod waits, or where it is placed."),
    "nodes": (f"{__name__}.nodes", "Show which nodes to add for the pods that wait."),
    "recommend": (f"{__name__}.recommend", "Recommend shares from what was used."),
    "resize": (f"{__name__}.resize", "Change the share of a SharePod or pod while it runs."),
    "inspect": (f"{__name__}.inspect", "Compare the scheduler's ledger with the pods' plans."),
    "topo": (f"{__name__}.topo", "Show how the GPUs of a node are connected, and which are free."),
    "doctor": (f"{__name__}.doctor", "Check the cluster's set-up."),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name=PACKAGE, prog_name="kubectl aliquot")
def cli() -> None:
    """The shared GPUs of a Kubernetes cluster."""


def complete() -> None:
    """The entry point of `kubectl_complete-aliquot`, which kubectl runs at a Tab after `kubectl aliquot`.

    kubectl passes the words, the last of them incomplete, and reads lines of `word<TAB>description` and a line with a
    number, of which 4 means that no file names are wanted.
    """
    import sys

    *before, last = sys.argv[1:] or [""]
    for item in ShellComplete(cli, {}, "kubectl aliquot", "_KUBECTL_ALIQUOT").get_completions(before, last):
        click.echo(f"{item.value}\t{item.help or ''}".rstrip("\t"))
    click.echo(":4")


def main() -> None:
    """The entry point of the console script `kubectl-aliquot`."""
    run_group(cli, "kubectl aliquot")
