"""Options that every command of `kubectl aliquot` has."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from aliquot.cli.kubectl.scene import Target
from aliquot.cli.options import together

Command = TypeVar("Command", bound=Callable[..., Any])
_TARGET = together(
    click.option("--kubeconfig", default="", metavar="FILE", help="Instead of KUBECONFIG and ~/.kube/config."),
    click.option("--context", default="", metavar="NAME", help="Context of the kubeconfig."),
    click.option("-n", "--namespace", default="", metavar="NAME", help="Namespace. [default: the context's]"),
    click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="All namespaces."),
)


def target_options(command: Command) -> Command:
    """`--kubeconfig`, `--context`, `-n` and `-A`, as kubectl has them; the command gets one Target."""

    @wraps(command)
    def with_target(*args: Any, kubeconfig: str, context: str, namespace: str, everywhere: bool, **rest: Any) -> Any:
        return command(*args, target=Target(kubeconfig, context, namespace, everywhere), **rest)

    return _TARGET(with_target)  # type: ignore[return-value]


agent_port_option = click.option("--agent-port", default=5678, show_default=True, help="Port of the nodes' agents.")

form_option = click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["text", "wide", "json", "yaml"]),
    default="text",
    help="How to print; json and yaml are for programs.",
)
