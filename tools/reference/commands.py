"""Commands, from what they say in --help."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import dedent

import click

from aliquot.cli.kubectl import cli as kubectl
from aliquot.cli.main import cli as aliquot
from reference.markdown import code, page, table


def aliquot_page() -> str:
    """`aliquot` with all its commands."""
    text = (
        "Exit status: 0 it was done, 1 it failed, 2 it was asked wrongly, 130 it was interrupted; `run` ends with its "
        "program's own. Ctrl-C before a command's first line, while Python itself starts, is Python's to answer: with "
        "a traceback, and 1. Every command has `--help`. "
        'Tab completes after `eval "$(aliquot completion bash)"`; there is one for zsh and fish.'
    )
    return page("aliquot", text, *_commands(aliquot, "aliquot"))


def kubectl_page() -> str:
    """`kubectl aliquot` with all its commands."""
    text = (
        "kubectl finds the program `kubectl-aliquot` on the PATH, and `kubectl_complete-aliquot` for Tab. Exit status: "
        "0 it was done, 1 it failed or something is wrong, 2 it was asked wrongly."
    )
    return page("kubectl aliquot", text, *_commands(kubectl, "kubectl aliquot"))


def _commands(group: click.Group, name: str, depth: int = 2) -> Iterator[str]:
    parent = click.Context(group, info_name=name)
    for word in group.list_commands(parent):
        command = group.get_command(parent, word)
        assert command is not None
        yield from _command(command, click.Context(command, info_name=word, parent=parent), f"{name} {word}", depth)
        if isinstance(command, click.Group):
            yield from _commands(command, f"{name} {word}", depth + 1)


def _command(command: click.Command, context: click.Context, name: str, depth: int) -> Iterator[str]:
    yield f"{'#' * depth} {name}"
    yield f"```text\n{name} {' '.join(command.collect_usage_pieces(context))}\n```"
    yield from _paragraphs(command.help or "")
    options = [record for each in command.params if (record := each.get_help_record(context)) is not None]
    rows = [(code(names), text) for names, text in options if text and not names.startswith(("--help", "-h,"))]
    if rows:
        yield table(("option", "what it does"), rows)
    if command.epilog:
        yield from _paragraphs(command.epilog)


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs as prose; one that keeps its lines (\\b) as code, a first line with a colon before it."""
    for part in text.replace("\f", "").split("\n\n"):
        lines = part.strip("\n").splitlines()
        if lines and lines[0].strip() == "\b":
            lines = lines[1:]
            if lines and lines[0].rstrip().endswith(":"):
                yield lines.pop(0).strip()
            yield "```text\n" + dedent("\n".join(line.rstrip() for line in lines)) + "\n```"
        elif lines:
            yield " ".join(line.strip() for line in lines).strip()
