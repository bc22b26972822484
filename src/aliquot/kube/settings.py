"""The settings of a program of the cluster: one struct, from which its flags, its file and the printed file come."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
import yaml

from aliquot.kube.dialects.aliyun import Unit
from aliquot.kube.manifest import BadYaml, read_yaml_file
from aliquot.kube.quantities import mib_up
from aliquot.lib.decoding import convert_to
from aliquot.model.errors import UserError
from aliquot.model.quantities import BadQuantity
from aliquot.model.validation import sentence

_SIZE: Final = re.compile(r"([a-z0-9]([-a-z0-9]{0,14}[a-z0-9])?)=(\d{1,3})/(\w+)")


class BadSettings(UserError):
    """A configuration file or a flag that cannot be used."""


def flag(text: str, metavar: str = "", *, ge: int | None = None, le: int | None = None) -> msgspec.Meta:
    """A setting's description, the name of its value on the command line (`FILE` is a path), and its bounds."""
    return msgspec.Meta(description=text, extra={"metavar": metavar}, ge=ge, le=le)


class ProgramSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """Base of all, with what every program has. Every field is annotated with `flag` and has a default."""

    kubeconfig: Annotated[str, flag("Instead of the pod's account and KUBECONFIG.", "FILE")] = ""
    aliyun_unit: Annotated[Unit, flag("Unit of aliyun.com/gpu-mem.")] = "GiB"
    log_format: Annotated[Literal["text", "json"], flag("How to log, on stderr.")] = "text"
    otlp_endpoint: Annotated[
        str, flag("Send spans of pods on their way here by OTLP/HTTP, as http://HOST:4318. [default: nowhere]", "URL")
    ] = ""

    def check(self) -> None:
        """Refuse settings that contradict each other.

        Raises:
            BadSettings: one of them is invalid.
        """
        if self.otlp_endpoint:
            require_url(self.otlp_endpoint, "--otlp-endpoint", "the URL of an OTLP/HTTP receiver", "http://HOST:4318")


S = TypeVar("S", bound=ProgramSettings)


def settings_fields(kind: type[ProgramSettings]) -> list[msgspec.structs.FieldInfo]:
    """The settings of a program, its own before those of every program."""
    return sorted(msgspec.structs.fields(kind), key=lambda field: field.name in ProgramSettings.__struct_fields__)


def require_url(text: str, option: str, what: str, example: str) -> None:
    """Refuse what is not an http or https URL.

    Raises:
        BadSettings: it is none, or has a query; the sentence says `what` it is to be.
    """
    try:
        parts = urlsplit(text)
        found = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        found = found and not (parts.query or parts.fragment)
    except ValueError:
        found = False
    if not found:
        raise BadSettings(f'{option} "{text:.80}" is not {what}; write {example}')


def fixed_sizes(text: str) -> dict[str, tuple[int, int]]:
    """Hundredths of a GPU and MiB by name, from `half=50/8Gi,eighth=12/2Gi`.

    Raises:
        BadSettings: it is not such a list.
    """
    sizes: dict[str, tuple[int, int]] = {}
    for one in filter(None, text.split(",")):
        found = _SIZE.fullmatch(one)
        try:
            mib = mib_up(found[4]) if found else 0
        except BadQuantity:
            mib = 0
        taken = found is not None and (found[1] in ("share", "shared", "whole", "placed") or found[1].startswith("gpu"))
        if found is None or taken or not mib or not 0 < int(found[3]) <= 100:
            raise BadSettings(
                f'--claim-sizes "{one}" is not a size; write NAME=HUNDREDTHS/MEMORY as in half=50/8Gi, 1 to 100 '
                "hundredths, a name of 16 small letters, digits and - at most, and none of ours: gpu..., share, whole"
            )
        sizes[found[1]] = int(found[3]), mib
    return sizes


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
        settings = convert_to(kind, given)
    except msgspec.ValidationError as error:
        where = f"--config {file}: " if file is not None else ""
        raise BadSettings(f"{where}{sentence(error, given, kind, called=called)}") from None
    settings.check()
    return settings


def print_settings(settings: ProgramSettings) -> str:
    """The settings as a configuration file that would give the same."""
    values = msgspec.to_builtins(settings)
    names = [field.encode_name for field in settings_fields(type(settings))]
    return yaml.safe_dump({name: values[name] for name in names}, sort_keys=False)
