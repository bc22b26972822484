"""`aliquot completion`: the script that makes Tab complete commands, options, profiles and the names of SharePods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class

if TYPE_CHECKING:
    from aliquot.standalone.wire import Call

A = TypeVar("A")
_INSTALL: Final = {
    "bash": 'eval "$(aliquot completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(aliquot completion zsh)" in ~/.zshrc, after compinit',
    "fish": "aliquot completion fish > ~/.config/fish/completions/aliquot.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(sorted(_INSTALL)))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash  eval "$(aliquot completion bash)" in ~/.bashrc
    zsh   eval "$(aliquot completion zsh)" in ~/.zshrc, after compinit
    fish  aliquot completion fish > ~/.config/fish/completions/aliquot.fish

    Example, for this shell only:
      eval "$(aliquot completion bash)"
    """

    made = get_completion_class(shell)
    assert made is not None
    click.echo(f"# {_INSTALL[shell]}")
    click.echo(made(click.get_current_context().find_root().command, {}, "aliquot", "_ALIQUOT_COMPLETE").source())


def answer_of(call: Call[A]) -> A | None:
    """The engine's answer, None where no engine answers: completion must not print errors."""
    from aliquot.cli.calling import ask_engine
    from aliquot.model.errors import AliquotError

    try:
        return ask_engine(call)
    except (AliquotError, OSError):
        return None


def sharepod_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The SharePods of the engine that is up, by full name and, in the namespace `default`, by name alone."""
    from aliquot.standalone.wire import PodsCall

    answer = answer_of(PodsCall())
    pods = [] if answer is None else answer.pods
    names = {name: pod.phase for pod in pods for name in (pod.name, pod.name.removeprefix("default/"))}
    return [CompletionItem(name, help=phase) for name, phase in sorted(names.items()) if name.startswith(incomplete)]


def profile_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The profiles of emulated GPUs."""
    from aliquot.driver.emulation import PROFILES

    return [CompletionItem(name, help=p.model) for name, p in sorted(PROFILES.items()) if name.startswith(incomplete)]


def policy_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The placement policies, after the last comma of a list of them."""
    from aliquot.driver import policies

    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in policies.policy_names() if name.startswith(last)]
