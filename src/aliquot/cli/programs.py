"""`aliquot node`, `scheduler` and `arbiter`: the programs that serve, each beside a program of others.

Node and scheduler have a struct of settings: an option for each field, and a file with all of them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import AsyncIterator, Callable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import click

from aliquot.cli.options import SECONDS, emulate_option, not_gpus_option, only_gpus_option, otlp_option
from aliquot.kube.settings import ProgramSettings, print_settings, read_settings, settings_fields
from aliquot.node.settings import NodeSettings
from aliquot.scheduler.settings import LOOPBACK, SchedulerSettings, address

if TYPE_CHECKING:
    from aliquot.scheduler.program import Scheduler

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
    """The option of one field, by its annotation."""
    kind, meta = get_args(hint)
    more: dict[str, Any] = {"metavar": meta.extra["metavar"] or None, "default": None}
    if kind is bool:
        name, default = f"{name}/--no-{name}", "yes" if default else "no"
    elif get_origin(kind) is tuple:
        more |= {"multiple": True}
    elif get_origin(kind) is Literal:
        more |= {"type": click.Choice([word for word in get_args(kind) if word])}
    elif issubclass(kind, Enum):
        more |= {"type": click.Choice([member.value for member in kind])}
    else:
        path = meta.extra["metavar"] == "FILE"
        more |= {"type": click.Path() if path else SECONDS if kind is float else kind}
    default = f"{default:g}" if kind is float else default
    shown = f" [default: {default}]" if default not in ("", ()) and "[default:" not in meta.description else ""
    return click.option(f"--{name}", help=f"{meta.description}{shown}", **more)


@click.command()
@settings_options(
    NodeSettings,
    "an agent",
    emulate=emulate_option,
    only_gpus=only_gpus_option,
    not_gpus=not_gpus_option,
    otlp_endpoint=otlp_option,
)
def node(settings: NodeSettings) -> None:
    """Serve this node's GPUs to the pods that were planned on it.

    Example, this node's settings as a file:
      aliquot node --print-config
    """
    from aliquot.node.agent import serve

    serve(settings)


@click.command()
@settings_options(SchedulerSettings, "a scheduler", otlp_endpoint=otlp_option)
@click.option("--print-kube-scheduler-config", is_flag=True, help="Print kube-scheduler's configuration, and end.")
@click.option("--url", default="", help="For --print-kube-scheduler-config: how kube-scheduler reaches the extender.")
@click.option("--ca-file", default="", help="For --print-kube-scheduler-config: CA of the extender's certificate.")
def scheduler(settings: SchedulerSettings, print_kube_scheduler_config: bool, url: str, ca_file: str) -> None:
    """Answer the stock kube-scheduler: which nodes fit, which is best, which pods to evict; and bind with the plan.

    Example, the configuration for kube-scheduler:
      aliquot scheduler --print-kube-scheduler-config
    """
    if print_kube_scheduler_config:
        import yaml

        from aliquot.scheduler.settings import kube_scheduler_config

        where = url or f"{'https' if settings.tls_cert else 'http'}://{settings.bind}"
        click.echo(yaml.safe_dump(kube_scheduler_config(where, ca_file=ca_file), sort_keys=False), nl=False)
        return
    import asyncio

    from aliquot.driver.policies import maker
    from aliquot.lib.log import set_up_log
    from aliquot.placement.pool_policy import pool_policy
    from aliquot.scheduler.program import serve

    maker(settings.policy)()
    pool_policy(settings.pool)
    set_up_log(settings.log_format)
    tell = partial(click.echo, err=True)
    asyncio.run(serve(settings, lambda where: tell(f"aliquot scheduler listens on {where}"), dashboard))


@contextlib.asynccontextmanager
async def dashboard(program: Scheduler) -> AsyncIterator[None]:
    """The pages beside the scheduler, if there are to be any."""
    settings = program.settings
    if not settings.web:
        yield
        return
    from aliquot.cli.scheduler_dashboard import dashboard_beside

    async with dashboard_beside(program) as url:
        host, _ = address(settings.web, "--web")
        insecure = settings.web_tokens and not settings.web_tls_cert and host not in LOOPBACK
        click.echo(
            f"dashboard at {url}{' (a token is taken over https and at localhost only)' if insecure else ''}", err=True
        )
        yield


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def arbiter(options: tuple[str, ...]) -> None:
    """Serve tokens; see --help.

    Example, a separate arbiter:
      aliquot arbiter --runtime-dir /tmp/arbiter --fresh
    """
    os.execv(sys.executable, [sys.executable, "-m", "aliquot.arbiter", *options])
