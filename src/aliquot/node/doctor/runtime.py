"""What a container runtime's configuration says about CDI and NVIDIA's runtime. Pure: the texts of its files are given.

Sources: containerd, docs/cri/config.md and internal/cri/config (CDI is off by default before 2.0 and on since; a file
that is imported replaces a plugin's whole section); CRI-O, crio.conf(5), `cdi_spec_dirs` (CDI is always on);
nvidia-container-toolkit, internal/config (the variable is accepted where the setting is missing).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from aliquot.lib.decoding import convert_to

T = TypeVar("T")
CONTAINERD: Final = "containerd"
CRIO: Final = "CRI-O"
DEFAULT_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")
UNPRIVILEGED: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_CRI: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")
"""The plugin that speaks to kubelet, in configurations of version 3, 2 and 1."""


@dataclass(frozen=True)
class Runtime:
    """One runtime that kubelet may use. `cdi` is None where the configuration leaves it to the version.

    `trouble` is empty, or why the configuration could not be read; then the rest is the default.
    """

    name: str
    config: str = ""
    cdi: bool | None = None
    folders: tuple[str, ...] = DEFAULT_FOLDERS
    serves_kubelet: bool = True
    trouble: str = ""
    default: str = ""
    """The runtime of pods that name no runtime class; empty where the configuration does not say."""


class _Handlers(msgspec.Struct):
    """What is read of containerd's section about its runtimes."""

    default_runtime_name: str = ""


class _Section(msgspec.Struct):
    """What is read of the plugin's section, in either program."""

    containerd: _Handlers = msgspec.field(default_factory=_Handlers)
    default_runtime: str = ""

    enable_cdi: bool | None = None
    cdi_spec_dirs: list[str] | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        return DEFAULT_FOLDERS if self.cdi_spec_dirs is None else tuple(self.cdi_spec_dirs)


class _Containerd(msgspec.Struct):
    version: int = 1
    imports: list[str] = []
    disabled_plugins: list[str] = []
    plugins: dict[str, Any] = {}


class _Crio(msgspec.Struct):
    crio: dict[str, Any] = {}


class _Unreadable(Exception):
    """A text that is not TOML, or has a wrong type where a setting that is read belongs."""


def containerd(config: str, texts: Iterable[tuple[str, str]], release: tuple[int, ...] = ()) -> Runtime:
    """containerd by its files (name and text, each after those that it replaces) and its release, where that is known.

    `config` is the file that people edit.
    """
    cdi: bool | None = None if not release else release >= (2,)
    made = Runtime(CONTAINERD, config, cdi)
    for name, text in texts:
        try:
            content = _read(text, _Containerd)
            section = _read_part(content.plugins, _CRI)
        except _Unreadable as error:
            return replace(made, trouble=f"{name}: {error}")
        if content.version >= 3:
            cdi = True
            made = replace(made, cdi=True if made.cdi is None else made.cdi)
        disabled = set(content.disabled_plugins) & set(_CRI)
        made = replace(made, serves_kubelet=made.serves_kubelet and not disabled)
        if section is not None:
            stated = cdi if section.enable_cdi is None else section.enable_cdi
            default = section.containerd.default_runtime_name or made.default
            made = replace(made, cdi=stated, folders=section.folders, default=default)
    return made


def crio(config: str, texts: Iterable[tuple[str, str]]) -> Runtime:
    """CRI-O by its files, each after those that it adds to."""
    made = Runtime(CRIO, config, True)
    for name, text in texts:
        try:
            section = _read_part(_read(text, _Crio).crio, ("runtime",))
        except _Unreadable as error:
            return replace(made, trouble=f"{name}: {error}")
        if section is not None:
            folders = made.folders if section.cdi_spec_dirs is None else section.folders
            made = replace(made, folders=folders, default=section.default_runtime or made.default)
    return made


def takes_variable(text: str) -> bool:
    """Whether NVIDIA's runtime, by its configuration, gives unprivileged containers the GPUs that a variable names."""
    try:
        return tomllib.loads(text).get(UNPRIVILEGED, True) is not False
    except tomllib.TOMLDecodeError:
        return False  # its runtime starts no container with it


def imports_of(text: str, folder: Path) -> tuple[str, ...]:
    """Patterns of the files that a containerd configuration in `folder` imports."""
    try:
        return tuple(str(folder / pattern) for pattern in _read(text, _Containerd).imports)
    except _Unreadable:
        return ()


def _read(text: str, kind: type[T]) -> T:
    """The settings of a file.

    Raises:
        _Unreadable: with the line, or the setting and what it has to be.
    """
    try:
        return convert_to(kind, tomllib.loads(text))
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise _Unreadable(str(error)) from None


def _read_part(sections: dict[str, Any], names: Iterable[str]) -> _Section | None:
    """The first of these sections that is there.

    Raises:
        _Unreadable: as `_read`.
    """
    for name in names:
        if name in sections:
            try:
                return convert_to(_Section, sections[name])
            except msgspec.ValidationError as error:
                raise _Unreadable(f"{error}, in section {name}") from None
    return None
