"""Options that every command of `kubectl aliquot` has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from aliquot.cli.kubectl.scene import Target

Command = TypeVar("Command", bound=Callable[..., Any])


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
