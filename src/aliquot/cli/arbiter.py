"""`aliquot arbiter`: the arbiter by hand; its options are its own."""

from __future__ import annotations

import os
import sys

import click


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def arbiter(options: tuple[str, ...]) -> None:
    """Serve tokens; see --help."""
    os.execv(sys.executable, [sys.executable, "-m", "aliquot.arbiter", *options])
