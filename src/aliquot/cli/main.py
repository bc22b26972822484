"""The command `aliquot`: finds the subcommand, and turns errors into one sentence and an exit status.

Commands are imported when they are called, so that `aliquot --help` and completion stay quick and a `run` does not
pay for tables and plots.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import click

from aliquot.cli.lazy import LazyGroup
from aliquot.cli.options import one_spelling
from aliquot.model.errors import AliquotError, UserError, in_words, one_line
from aliquot.model.extras import LAB_PACKAGE, PACKAGE, adding, missing_extra

# name -> (module, line in --help), in the order of --help: the most used first.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "run": ("aliquot.cli.run", "Run a command with a part of a GPU."),
    "share": ("aliquot.cli.share", "Make parts of GPUs for docker and podman, by name; list, delete."),
    "up": ("aliquot.cli.up", "Serve this machine's GPUs to SharePods until stopped; -d in the background."),
    "down": ("aliquot.cli.up", "End the engine that is up with everything it runs."),
    "apply": ("aliquot.cli.pods", "Create or update SharePods from files."),
    "resize": ("aliquot.cli.resize", "Change the share of a SharePod or run while it runs."),
    "recommend": ("aliquot.cli.recommend", "Recommend shares from what was used."),
    "park": ("aliquot.cli.park", "Take the GPU memory of what is idle into the host's, until it is needed."),
    "unpark": ("aliquot.cli.park", "Bring the GPU memory of what was parked back now."),
    "move": ("aliquot.cli.park", "Take what runs to another GPU of the same model."),
    "yield": ("aliquot.cli.park", "Say in a run that it needs no GPU until further notice."),
    "acquire": ("aliquot.cli.park", "Say in a run that it needs its GPU, and wait for its memory."),
    "get": ("aliquot.cli.get", "List sharepods, tenants, gpus, hours or all; -w goes on with changes."),
    "describe": ("aliquot.cli.pods", "Show details of one SharePod."),
    "logs": ("aliquot.cli.pods", "Show the output of SharePods."),
    "exec": ("aliquot.cli.pods", "Run a command in the place of a SharePod's container."),
    "delete": ("aliquot.cli.pods", "End SharePods."),
    "top": ("aliquot.cli.top", "Show the use of the GPUs, live."),
    "dashboard": ("aliquot.cli.up", "Print the address of the dashboard, which signs your account in."),
    "explain": ("aliquot.cli.explain", "Explain why a request waits, or why it is placed where it is."),
    "topo": ("aliquot.cli.topo", "Show which GPUs are near each other and which to take together."),
    "doctor": ("aliquot.cli.doctor", "Check this machine: driver, protection level, how to fix each problem."),
    "scheduler": ("aliquot.cli.programs", "Serve placement to a cluster's kube-scheduler."),
    "convert": ("aliquot.cli.convert", "Show manifests of other projects in Aliquot's words."),
    "node": ("aliquot.cli.programs", "Serve a Kubernetes node's GPUs to the pods planned on it."),
    "completion": ("aliquot.cli.completion", "Print the script that makes Tab complete."),
    "arbiter": ("aliquot.cli.programs", "Serve tokens (started by the engine; rarely by hand)."),
}
INTERRUPTED: Final = 130
"""The exit status after Ctrl-C, as a shell has it."""
LAB: Final = ("demo", "bench", "sim")
"""Commands of the distribution `aliquot-lab`, by entry points."""


class _Commands(LazyGroup):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command, or the way to install it where `aliquot-lab` has it."""
        if args and args[0] in LAB and self.get_command(ctx, args[0]) is None:
            raise UserError(f"{args[0]} comes with aliquot-lab, which is not installed: {adding(package=LAB_PACKAGE)}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    table=COMMANDS,
    added="aliquot.commands",
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "token_normalize_func": one_spelling,
    },
)
@click.version_option(package_name=PACKAGE, prog_name="aliquot")
def cli() -> None:
    """Share GPUs by the fraction and enforce the shares."""


def main() -> None:
    """The entry point of the console script."""
    run_group(cli, "aliquot")


def run_group(group: click.Group, name: str) -> None:
    """Run a program's commands and exit with their status; `name` is the program's name in messages."""
    try:
        status = group.main(prog_name=name, standalone_mode=False)
        sys.stdout.flush()  # a failed write is an error like any other, not a traceback at exit
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else error.format_message())
        sys.exit(2)
    except click.UsageError as error:
        hint = f" See: {error.ctx.command_path} --help" if error.ctx else ""
        _fail(f"{error.format_message()}{hint}", 2)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except click.exceptions.Abort:
        sys.exit(INTERRUPTED)
    except AliquotError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:
        sentence = _expected(error)
        if sentence is None:
            raise
        try:
            sys.stdout.flush()
        except OSError:  # the interpreter would write again at exit, with a traceback
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(sentence, 1)
    sys.exit(status if isinstance(status, int) else 0)


def _expected(error: Exception) -> str | None:
    """The sentence of a failure that a part below reports in its own way; None for a defect."""
    if isinstance(error, ModuleNotFoundError):
        extra = missing_extra(error.name or "")
        return None if extra is None else str(extra)
    from aliquot.arbiter.client import ArbiterError
    from aliquot.driver.native import NativePartMissing

    if isinstance(error, ArbiterError | NativePartMissing):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        return in_words(error)
    return None


def _fail(text: str, code: int) -> None:
    """Ends with a sentence, in which what a user gave is cut where it is long."""
    click.echo(f"aliquot: {one_line(text)}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
