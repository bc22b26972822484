"""How facts are printed: tables for people, JSON and YAML for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

from aliquot.cli.forms import text_of
from aliquot.cli.kubectl.scene import Target

Command = TypeVar("Command", bound=Callable[..., Any])
Row = Sequence[str]


def target_options(command: Command) -> Command:
    """`--kubeconfig`, `--context`, `-n` and `-A`, as kubectl has them; the command gets one Target."""
    from functools import wraps

    @wraps(command)
    def with_target(*args: Any, kubeconfig: str, context: str, namespace: str, everywhere: bool, **rest: Any) -> Any:
        return command(*args, target=Target(kubeconfig, context, namespace, everywhere), **rest)

    options = [
        click.option("--kubeconfig", default="", metavar="FILE", help="Instead of KUBECONFIG and ~/.kube/config."),
        click.option("--context", default="", metavar="NAME", help="Context of the kubeconfig."),
        click.option("-n", "--namespace", default="", metavar="NAME", help="Namespace. [default: the context's]"),
        click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="All namespaces."),
    ]
    made: Any = with_target
    for option in reversed(options):
        made = option(made)
    return made  # type: ignore[no-any-return]


def form_option(command: Command) -> Command:
    """`-o json|yaml|wide`."""
    forms = click.Choice(["text", "wide", "json", "yaml"])
    help_ = "How to print; json and yaml are for programs."
    return click.option("-o", "--output", "form", type=forms, default="text", help=help_)(command)


def show(form: str, facts: Any, lines: Callable[[], Iterable[str]]) -> None:
    """Print facts in a format; `lines` is the form for people."""
    if form in ("json", "yaml"):
        click.echo(text_of(form, facts), nl=form == "json")
    else:
        for line in lines():
            click.echo(line)


def table(head: Row, rows: Iterable[Row], *, right: Sequence[int] = ()) -> Iterable[str]:
    """Aligned columns; those numbered in `right` are aligned to the right."""
    everything = [head, *rows]
    widths = [max(len(row[column]) for row in everything) for column in range(len(head))]
    for row in everything:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
