"""Groups of commands: import each command only when it is called, and list all in --help.

A package adds commands with the entry point group `aliquot.commands`: a module with `COMMANDS`, a table as in
`main.py`. A name of the core cannot be taken by a package.

The docstring of a command ends with an example, which stands behind the options in its --help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from inspect import cleandoc
from keyword import iskeyword
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from aliquot.model.errors import AliquotError, UserError

_MEANT: Final = {
    "ps": "get", "ls": "get", "list": "get", "show": "get", "status": "get", "rm": "delete", "kill": "delete",
    "stop": "down", "shutdown": "down", "start": "up", "serve": "up", "create": "apply", "log": "logs",
    "attach": "exec", "sh": "exec", "shell": "exec", "nvidia-smi": "top", "htop": "top", "check": "doctor",
    "submit": "run", "srun": "run", "why": "explain", "info": "doctor", "topology": "topo",
}  # fmt: skip
"""What people of other tools type for a command of ours."""
_EXAMPLE: Final = "\n\nExample, "
_CHANGING: Final = ("edit", "patch", "replace", "restart", "rollout", "scale", "set")
"""What people of other tools type to change what runs."""


class SuggestingGroup(click.Group):
    """A group that names the commands that a misspelt one may be."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments name, or a refusal with those that are spelt nearly so."""
        if args and self.get_command(ctx, args[0]) is None:
            names = self.list_commands(ctx)
            if args[0] in _CHANGING and "apply" in names:
                ctx.fail(
                    f"No such command '{args[0]}'. Of what runs aliquot resize changes the share; for anything else "
                    "change its file and start it anew: aliquot apply --restart -f FILE."
                )
            meant = _MEANT.get(args[0], "")
            if close := [meant] if meant in names else get_close_matches(args[0], names):
                ctx.fail(f"No such command '{args[0]}'. Did you mean {' or '.join(close)}?")
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, click.Group) and not ctx.resilient_parsing:
            _refuse_empty_options(click.Context(command, ctx, name, **command.context_settings), rest)
        return name, command, rest


def _refuse_empty_options(ctx: click.Context, args: Sequence[str]) -> None:
    """Refuse an option that is given without a value, as by a script's variable that is not set.

    Left out it stands for its default, which may be all that there is.

    Raises:
        UserError: the sentence names the option.
    """
    given, _, _ = ctx.command.make_parser(ctx).parse_args(list(args))
    for option in ctx.command.params:
        values = given.get(option.name or "", ()) if isinstance(option, click.Option) else ()
        for value in [values] if isinstance(values, str) else values if isinstance(values, list) else ():
            if isinstance(value, str) and not value.replace(",", "").strip():
                raise UserError(f"{option.opts[0]} is empty; name one, or leave the option out")


class WholeSentences(SuggestingGroup):
    """A group whose --help lists each command with the first line of its help, whole.

    click ends a short help at the first full stop, which may be that of an abbreviation, and cuts it to one line.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list for --help."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, " ".join((c.help or "").split("\n\n")[0].split())) for name, c in commands if c and not c.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class LazyGroup(SuggestingGroup):
    """Commands by a table: name -> (module, line in --help). A command has its name in its module.

    `added` is the entry point group of more commands.
    """

    def __init__(self, *, table: Mapping[str, tuple[str, str]], added: str = "", **settings: Any) -> None:
        super().__init__(**settings)
        self._table = table
        self._group = added

    @cached_property
    def _added(self) -> dict[str, tuple[str, str]]:
        """Commands of installed packages.

        Raises:
            AliquotError: A package's table cannot be loaded.
        """
        from importlib.metadata import entry_points  # takes 20 ms, which no command of the table should pay for

        commands: dict[str, tuple[str, str]] = {}
        for entry in entry_points(group=self._group) if self._group else ():
            try:
                commands.update(entry.load().COMMANDS)
            except (ImportError, AttributeError) as error:
                raise AliquotError(
                    f"the commands of {entry.value} cannot be loaded ({error}); install it again"
                ) from None
        return commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table, then those of packages."""
        return list(self._rows())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, imported now."""
        table = self._table if cmd_name in self._table else self._added
        if cmd_name not in table:
            return None
        command = getattr(import_module(table[cmd_name][0]), cmd_name + "_" * iskeyword(cmd_name))
        assert isinstance(command, click.Command)
        text, mark, example = cleandoc(command.help or "").rpartition(_EXAMPLE)
        if mark:
            command.help, command.epilog = text, f"\b{mark[1:]}{example}"
        return command

    def _rows(self) -> Mapping[str, tuple[str, str]]:
        return {**self._table, **self._added, **self._table}

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands from the table, so that a Tab imports none of them."""
        words = [(name, text) for name, (_, text) in self._rows().items() if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=text) for name, text in words), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list for --help, from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._rows().items()])
