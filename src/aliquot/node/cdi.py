"""CDI specification files: what a container gets besides its image, written just before the runtime reads them.

One file for each device name. A name's content never changes, since runtimes cache what they have read under a name,
except for a container that could not work with its earlier driver.

Source: CNCF container device interface, SPEC.md, version 0.6.0.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from aliquot.lib.files import UNFINISHED, write_whole
from aliquot.model.errors import AliquotError
from aliquot.node.allocation.kubelet import CDI_KIND

CDI_VERSION: Final = "0.6.0"
_PREFIX: Final = "aliquot.dev-gpu_"


class CdiError(AliquotError):
    """A specification could not be written."""


@dataclass(frozen=True)
class Mount:
    """A file or folder of the node shown in the container."""

    host: Path
    inside: Path
    writable: bool = False

    def body(self) -> dict[str, Any]:
        """As CDI writes it."""
        kind = "rw" if self.writable else "ro"
        return {
            "hostPath": str(self.host),
            "containerPath": str(self.inside),
            "options": [kind, "nosuid", "nodev", "rbind"],
        }


@dataclass(frozen=True)
class DeviceNode:
    """A device at `inside`; `host` where it lies elsewhere on the node, as below the root of a driver container."""

    inside: Path
    host: Path | None = None

    def body(self) -> dict[str, Any]:
        """As CDI writes it."""
        return {"path": str(self.inside)} | ({"hostPath": str(self.host)} if self.host is not None else {})


@dataclass(frozen=True)
class Edits:
    """What a CDI device changes in a container."""

    env: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    hooks: tuple[dict[str, Any], ...] = ()

    def __add__(self, other: Edits) -> Edits:
        return Edits(
            self.env + other.env,
            self.mounts + other.mounts,
            self.device_nodes + other.device_nodes,
            self.hooks + other.hooks,
        )

    def body(self) -> dict[str, Any]:
        """As CDI writes it; empty lists are left out, as some readers refuse them."""
        parts: dict[str, Any] = {
            "env": list(self.env),
            "mounts": [mount.body() for mount in self.mounts],
            "deviceNodes": [node.body() for node in self.device_nodes],
            "hooks": list(self.hooks),
        }
        return {key: value for key, value in parts.items() if value}


def qualified(name: str) -> str:
    """The name by which Allocate answers with a device."""
    return f"{CDI_KIND}={name}"


def write_spec(folder: Path, name: str, edits: Edits) -> Path:
    """Write the file of one device; the runtime sees all of it or nothing.

    Raises:
        CdiError: it could not be written.
    """
    device = {"name": name, "containerEdits": edits.body()}
    body = msgspec.json.encode({"cdiVersion": CDI_VERSION, "kind": CDI_KIND, "devices": [device]})
    path = folder / f"{_PREFIX}{name}.json"
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if path.exists() and path.read_bytes() == body:
            return path
        write_whole(path, body, synced=False, mode=0o644)
    except OSError as error:
        raise CdiError(f"{path} could not be written ({error.strerror}); is cdi-dir right?") from None
    return path


def remove_spec(folder: Path, name: str) -> None:
    """Remove a device's file; a missing file is no error.

    Raises:
        CdiError: its file cannot be removed.
    """
    path = folder / f"{_PREFIX}{name}.json"
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise CdiError(f"{path} could not be removed ({error.strerror}); the folder has to be writable") from None


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of an interrupted `write_spec`; nothing may be written meanwhile."""
    for path in folder.glob(f"{_PREFIX}*{UNFINISHED}") if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            path.unlink()


def written_names(folder: Path) -> set[str]:
    """The devices that have a file."""
    files = folder.glob(f"{_PREFIX}*.json") if folder.is_dir() else ()
    return {path.name.removeprefix(_PREFIX).removesuffix(".json") for path in files}
