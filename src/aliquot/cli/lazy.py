"""Groups of commands: import each command only when it is called, and list all in --help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from aliquot.cli.examples import with_example

_MEANT: Final = {
    "ps": "get", "ls": "get", "list": "get", "show": "get", "status": "get", "rm": "delete", "kill": "delete",
    "stop": "down", "shutdown": "down", "start": "up", "serve": "up", "create": "apply", "log": "logs",
    "attach": "exec", "sh": "exec", "shell": "exec", "nvidia-smi": "top", "htop": "top", "check": "doctor",
    "submit": "run", "srun": "run", "why": "explain", "info": "doctor", "topology": "topo",
}  # fmt: skip
"""What people of other tools type for a command of ours."""
_CHANGING: Final = ("edit", "patch", "replace", "resize", "restart", "rollout", "scale", "set")
"""What people of other tools type to change what runs."""


class SuggestingGroup(click.Group):
    """A group that names the commands that a misspelt one may be."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments name, or a refusal with those that are spelt nearly so."""
        known = self.list_commands(ctx)
        if args and args[0] in _CHANGING and "apply" in known:
            ctx.fail(
                f"No such command '{args[0]}'. What runs cannot be changed in place; change its file and "
                "start it anew: aliquot apply --restart -f FILE."
            )
        if args and args[0] not in known and (close := self._close(args[0], known)):
            ctx.fail(f"No such command '{args[0]}'. Did you mean {' or '.join(close)}?")
        return super().resolve_command(ctx, args)

    @staticmethod
    def _close(word: str, known: Sequence[str]) -> list[str]:
        """The command that another tool calls so, else those that are spelt nearly so."""
        meant = _MEANT.get(word, "")
        return [meant] if meant in known else get_close_matches(word, known)


class WholeSentences(SuggestingGroup):
    """A group whose --help lists each command with the first line of its help, whole.

    click ends a short help at the first full stop, which may be that of an abbreviation, and cuts it to one line.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list for --help."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, " ".join((c.help or "").split("\n\n")[0].split())) for name, c in found if c and not c.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class LazyGroup(SuggestingGroup):
    """Commands by a table: name -> (module, line in --help). A command has its name in its module.

    `examples` are the epilogues of their help (see `examples.py`).
    """

    def __init__(
        self, *, table: Mapping[str, tuple[str, str]], examples: Mapping[str, tuple[str, str]], **settings: Any
    ) -> None:
        super().__init__(**settings)
        self._table = table
        self._examples = examples

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, imported now."""
        if cmd_name not in self._table:
            return None
        command = getattr(import_module(self._table[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return with_example(cmd_name, command, self._examples)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands from the table, so that a Tab imports none of them."""
        words = [(name, text) for name, (_, text) in self._table.items() if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=text) for name, text in words), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list for --help, from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._table.items()])
