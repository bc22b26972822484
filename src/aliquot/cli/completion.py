"""`aliquot completion`: the script that makes Tab complete commands, options, profiles and the names of SharePods."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

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
    """
    from aliquot.cli.main import cli

    made = get_completion_class(shell)
    assert made is not None
    click.echo(f"# {_INSTALL[shell]}")
    click.echo(made(cli, {}, "aliquot", "_ALIQUOT_COMPLETE").source())


def sharepod_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The SharePods of the engine that is up, by full name and, in the namespace `default`, by name alone.

    Empty where no engine answers: completion must not print errors.
    """
    from aliquot.model.errors import AliquotError
    from aliquot.standalone.client import ask
    from aliquot.standalone.paths import RuntimeDir, runtime_dir
    from aliquot.standalone.wire import Call

    try:
        pods = ask(RuntimeDir(runtime_dir()), Call("pods")).pods or []
    except (AliquotError, OSError):
        return []
    names = {name: pod.phase for pod in pods for name in (pod.name, pod.name.removeprefix("default/"))}
    return [CompletionItem(name, help=phase) for name, phase in sorted(names.items()) if name.startswith(incomplete)]


def profile_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The profiles of emulated GPUs."""
    from aliquot.driver.emulation import PROFILES

    return [CompletionItem(name, help=p.model) for name, p in sorted(PROFILES.items()) if name.startswith(incomplete)]
