"""The options of a program that has a struct of settings: one for each, and a file with all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from aliquot.cli.options import SECONDS
from aliquot.kube.settings import ProgramSettings, print_settings, read_settings, settings_fields

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


def settings_options(kind: type[ProgramSettings], called: str, **own: Decorator) -> Decorator:
    """Options for the settings of `kind`, which the command gets as `settings`; `own` are options made elsewhere."""
    fields = settings_fields(kind)
    hints = get_type_hints(kind, include_extras=True)

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(config: Path | None, print_config: bool, **given: Any) -> Any:
            flags = {field.name: given.pop(field.name) for field in fields}
            settings = read_settings(kind, config, flags, called=called)
            if print_config:
                click.echo(print_settings(settings), nl=False)
                return None
            return command(settings=settings, **given)

        made: Command = wrapped
        for field in reversed(fields):
            made = (own.get(field.name) or _option(field.encode_name, hints[field.name], field.default))(made)
        made = click.option("--print-config", is_flag=True, help="Print the settings as such a file, and end.")(made)
        file = click.Path(dir_okay=False, path_type=Path)
        return click.option("--config", type=file, help="Settings as YAML, named as the flags.")(made)

    return decorate


def _option(name: str, hint: Any, default: Any) -> Decorator:
    kind, meta = get_args(hint)
    more: dict[str, Any] = {"metavar": meta.extra["metavar"] or None, "default": None}
    if kind is bool:
        name, default = f"{name}/--no-{name}", "yes" if default else "no"
    elif get_origin(kind) is tuple:
        more |= {"multiple": True}
    elif get_origin(kind) is Literal:
        more |= {"type": click.Choice([word for word in get_args(kind) if word])}
    elif issubclass(kind, Enum):
        more |= {"type": click.Choice([each.value for each in kind])}
    else:
        path = meta.extra["metavar"] == "FILE"
        more |= {"type": click.Path() if path else SECONDS if kind is float else kind}
    default = f"{default:g}" if kind is float else default
    shown = f" [default: {default}]" if default not in ("", ()) and "[default:" not in meta.description else ""
    return click.option(f"--{name}", help=f"{meta.description}{shown}", **more)
