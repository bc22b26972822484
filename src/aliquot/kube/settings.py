"""The settings of a program of the cluster: one struct, from which its flags, its file and the printed file come."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from aliquot.kube.manifest import BadYaml, read_yaml_file
from aliquot.model.errors import UserError
from aliquot.model.validation import sentence


class BadSettings(UserError):
    """A configuration file or a flag that cannot be used."""


class ProgramSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Base of all. Every field is annotated with `flag` and has a default."""

    def check(self) -> None:
        """Refuse settings that contradict each other.

        Raises:
            BadSettings: one of them is invalid.
        """


S = TypeVar("S", bound=ProgramSettings)


def flag(text: str, metavar: str = "", *, ge: int | None = None, le: int | None = None) -> msgspec.Meta:
    """A setting's description, the name of its value on the command line (`FILE` is a path), and its bounds."""
    return msgspec.Meta(description=text, extra={"metavar": metavar}, ge=ge, le=le)


def read_settings(kind: type[S], file: Path | None, flags: dict[str, Any], *, called: str) -> S:
    """The settings of a file (YAML, named as the flags), overridden by the given flags; `called` is the program.

    Raises:
        BadSettings: the file cannot be read, names an unknown setting, or a setting is invalid.
    """
    given: dict[str, Any] = {}
    if file is not None:
        try:
            given = read_yaml_file(file) or {}
        except BadYaml as error:
            raise BadSettings(f"--config {error}") from None
        if not isinstance(given, dict):
            raise BadSettings(f"--config {file}: it is not a mapping of settings to values")
    given |= {name.replace("_", "-"): value for name, value in flags.items() if value not in (None, ())}
    try:
        settings = msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        where = f"--config {file}: " if file is not None else ""
        raise BadSettings(f"{where}{sentence(error, given, kind, called=called)}") from None
    settings.check()
    return settings


def print_settings(settings: ProgramSettings) -> str:
    """The settings as a configuration file that would give the same."""
    return yaml.safe_dump(msgspec.to_builtins(settings), sort_keys=False)
