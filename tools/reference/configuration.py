"""Settings of files and of the environment: the node's from their type, the words from the flags of the same name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import msgspec

from aliquot.cli.main import cli
from aliquot.node.settings import Settings
from reference.markdown import code, page, table

SOURCES = Path(__file__).resolve().parents[2] / "src"
ENVIRONMENT = {
    "ALIQUOT_RUNTIME_DIR": "where this machine's engine has its sockets and tenants",
    "ALIQUOT_STATE_DIR": "where this machine's engine keeps what outlives it",
    "ALIQUOT_NATIVE_DIR": "where the built native parts lie, when Aliquot runs from its sources",
    "NO_COLOR": "no colours on a terminal",
    "KUBECONFIG": "kubeconfig files, as kubectl reads them",
}
_READ = re.compile(r"environ(?:\.get\(|\[)\s*\"(ALIQUOT_[A-Z_]+)\"")


def page_text() -> str:
    """What can be set, and where."""
    return page(
        "Configuration",
        "The scheduler and the arbiter are set by flags alone: [aliquot scheduler](cli.md#aliquot-scheduler), "
        "[aliquot arbiter](cli.md#aliquot-arbiter).",
        "## The node agent's file",
        "`aliquot node --config FILE` reads YAML with these names. Each is a flag too (`--node-name`), which comes "
        "before the file. A name that does not exist is refused. `--print-config` prints all of them as such a file.",
        table(("setting", "type", "default", "what it sets"), _node()),
        "## Environment",
        table(("variable", "what it sets"), _environment()),
    )


def _node() -> list[tuple[str, str, str, str]]:
    command = cli.get_command(click.Context(cli), "node")
    assert command is not None
    helps = {param.name: getattr(param, "help", "") or "" for param in command.params}
    defaults = msgspec.to_builtins(Settings())
    rows = []
    for field in msgspec.structs.fields(Settings):
        if field.name not in helps:
            raise SystemExit(f"aliquot node has no flag for the setting {field.encode_name}")
        text = helps[field.name].partition(" [default:")[0]
        rows.append((code(field.encode_name), _type(field.type), _default(defaults[field.encode_name]), text))
    return rows


def _type(kind: Any) -> str:
    return {str: "text", int: "whole number", float: "number", bool: "yes or no"}.get(kind, "text")


def _default(value: object) -> str:
    return code(str(value).lower() if isinstance(value, bool) else value)


def _environment() -> list[tuple[str, str]]:
    read = {name for file in SOURCES.rglob("*.py") for name in _READ.findall(file.read_text())}
    if unknown := read - ENVIRONMENT.keys():
        raise SystemExit(f"the code reads {', '.join(sorted(unknown))}; say what it sets in {Path(__file__).name}")
    return [(code(name), text) for name, text in ENVIRONMENT.items()]
