"""What a container runtime's configuration says of CDI. Pure: the texts of its files are given.

Sources: containerd, docs/cri/config.md and internal/cri/config (CDI is off by default before 2.0 and on since; a file
that is imported replaces a plugin's whole section); CRI-O, crio.conf(5), `cdi_spec_dirs` (CDI is always on).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

CONTAINERD: Final = "containerd"
CRIO: Final = "CRI-O"
DEFAULT_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")
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


def containerd(config: str, texts: Iterable[tuple[str, str]], release: tuple[int, ...] = ()) -> Runtime:
    """containerd by its files (name and text, each after those that it replaces) and its release, where that is known.

    `config` is the file that people edit.
    """
    cdi: bool | None = None if not release else release >= (2,)
    made = Runtime(CONTAINERD, config, cdi)
    for name, text in texts:
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            return replace(made, trouble=f"{name}: {error}")
        if content.get("version", 1) >= 3:
            cdi = True
            made = replace(made, cdi=True if made.cdi is None else made.cdi)
        disabled = {str(plugin) for plugin in content.get("disabled_plugins", ())}
        made = replace(made, serves_kubelet=made.serves_kubelet and not disabled & set(_CRI))
        plugins = content.get("plugins", {})
        section = next((plugins[plugin] for plugin in _CRI if plugin in plugins), None)
        if section is not None:
            made = replace(made, cdi=section.get("enable_cdi", cdi), folders=_folders(section))
    return made


def crio(config: str, texts: Iterable[tuple[str, str]]) -> Runtime:
    """CRI-O by its files, each after those that it adds to."""
    made = Runtime(CRIO, config, True)
    for name, text in texts:
        try:
            section = tomllib.loads(text).get("crio", {}).get("runtime", {})
        except tomllib.TOMLDecodeError as error:
            return replace(made, trouble=f"{name}: {error}")
        if "cdi_spec_dirs" in section:
            made = replace(made, folders=_folders(section))
    return made


def imports_of(text: str, folder: Path) -> tuple[str, ...]:
    """Patterns of the files that a containerd configuration in `folder` imports."""
    try:
        listed = tomllib.loads(text).get("imports", ())
    except tomllib.TOMLDecodeError:
        return ()
    return tuple(str(folder / str(pattern)) for pattern in listed)


def _folders(section: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(folder) for folder in section.get("cdi_spec_dirs", DEFAULT_FOLDERS))
