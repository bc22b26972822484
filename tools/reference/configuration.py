"""Settings of files and of the environment: those of a program from the type that its flags come from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from aliquot.kube.settings import ProgramSettings, settings_fields
from aliquot.node.settings import NodeSettings
from aliquot.scheduler.settings import SchedulerSettings
from reference.markdown import code, page, table

SOURCES = Path(__file__).resolve().parents[2] / "src"
ENVIRONMENT = {
    "ALIQUOT_MACHINE_DIR": "where the engine that serves all accounts has them, in place of /run/aliquot",
    "ALIQUOT_RUNTIME_DIR": "where this machine's engine has its sockets and tenants",
    "ALIQUOT_STATE_DIR": "where this machine's engine keeps what outlives it",
    "ALIQUOT_CDI_DIR": "where this machine's engine writes the CDI files of shares",
    "ALIQUOT_NATIVE_DIR": "where the built native parts lie, when Aliquot runs from its sources",
    "NO_COLOR": "no colours on a terminal",
    "KUBECONFIG": "kubeconfig files, as kubectl reads them",
}
_READ = re.compile(r"environ(?:\.get\(|\[)\s*\"(ALIQUOT_[A-Z_]+)\"")


def page_text() -> str:
    """What can be set, and where."""
    header = ("setting", "type", "default", "what it sets")
    return page(
        "Configuration",
        "The arbiter is set by flags alone: [aliquot arbiter](cli.md#aliquot-arbiter).",
        "## The node agent's file",
        "`aliquot node --config FILE` reads YAML with these names. Each is a flag too (`--node-name`), which comes "
        "before the file. A name that does not exist is refused. `--print-config` prints all of them as such a file.",
        table(header, _settings(NodeSettings)),
        "## The scheduler's file",
        "`aliquot scheduler --config FILE` reads these in the same way; `--print-config` prints them.",
        table(header, _settings(SchedulerSettings)),
        "## Environment",
        table(("variable", "what it sets"), _environment()),
    )


def _settings(kind: type[ProgramSettings]) -> list[tuple[str, str, str, str]]:
    defaults, hints = msgspec.to_builtins(kind()), get_type_hints(kind, include_extras=True)
    rows = []
    for field in settings_fields(kind):
        kept, meta = get_args(hints[field.name])
        text = meta.description.partition(" [default:")[0]
        rows.append((code(field.encode_name), _type(kept), _default(defaults[field.encode_name]), text))
    return rows


def _type(kind: Any) -> str:
    names = {str: "text", int: "whole number", float: "number", bool: "yes or no", tuple[str, ...]: "list of texts"}
    return names.get(kind, "text")


def _default(value: object) -> str:
    return "" if value == [] else code(str(value).lower() if isinstance(value, bool) else value)


def _environment() -> list[tuple[str, str]]:
    read = {name for file in SOURCES.rglob("*.py") for name in _READ.findall(file.read_text())}
    if unknown := read - ENVIRONMENT.keys():
        raise SystemExit(f"the code reads {', '.join(sorted(unknown))}; say what it sets in {Path(__file__).name}")
    return [(code(name), text) for name, text in ENVIRONMENT.items()]
