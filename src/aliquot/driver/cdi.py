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

GPU_KIND: Final = "aliquot.dev/gpu"
"""Of a container in a cluster: a fresh name for each."""
SHARE_KIND: Final = "aliquot.dev/share"
"""Of a share on one machine, by the name that a person gave it."""
CDI_VERSIONS: Final = {GPU_KIND: "0.6.0", SHARE_KIND: "0.3.0"}
"""The oldest that has all that is used, for old podmans; names that begin with a digit are of 0.6.0."""
_WAYS_OUT: Final = {
    GPU_KIND: "is cdi-dir right?",
    SHARE_KIND: "set ALIQUOT_CDI_DIR where the engine is started to a folder that it may write to",
}


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

    def options(self) -> list[str]:
        """The same for `docker run` and `podman run` where these do not know of CDI; there are no hooks then."""
        words = [word for variable in self.env for word in ("--env", variable)]
        for mount in self.mounts:
            access = "" if mount.writable else ",readonly"
            words += ["--mount", f"type=bind,source={mount.host},target={mount.inside}{access}"]
        for node in self.device_nodes:
            words += ["--device", f"{node.host or node.inside}:{node.inside}"]
        return words

    def body(self) -> dict[str, Any]:
        """As CDI writes it; empty lists are left out, as some readers refuse them."""
        parts: dict[str, Any] = {
            "env": list(self.env),
            "mounts": [mount.body() for mount in self.mounts],
            "deviceNodes": [node.body() for node in self.device_nodes],
            "hooks": list(self.hooks),
        }
        return {key: value for key, value in parts.items() if value}


def write_spec(folder: Path, name: str, edits: Edits, kind: str = GPU_KIND) -> Path:
    """Write the file of one device; the runtime sees all of it or nothing.

    Raises:
        CdiError: it could not be written.
    """
    device = {"name": name, "containerEdits": edits.body()}
    body = msgspec.json.encode({"cdiVersion": CDI_VERSIONS[kind], "kind": kind, "devices": [device]})
    path = spec_path(folder, name, kind)
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if path.exists() and path.read_bytes() == body:
            return path
        write_whole(path, body, synced=False, mode=0o644)
    except OSError as error:
        raise CdiError(f"{path} could not be written ({error.strerror}); {_WAYS_OUT[kind]}") from None
    return path


def remove_spec(folder: Path, name: str, kind: str = GPU_KIND) -> None:
    """Remove a device's file; a missing file is no error.

    Raises:
        CdiError: its file cannot be removed.
    """
    path = spec_path(folder, name, kind)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise CdiError(f"{path} could not be removed ({error.strerror}); the folder has to be writable") from None


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of an interrupted `write_spec`; nothing may be written meanwhile."""
    for path in folder.glob(f"{_prefix(GPU_KIND)}*{UNFINISHED}") if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            path.unlink()


def written_names(folder: Path, kind: str = GPU_KIND) -> set[str]:
    """The devices that have a file."""
    files = folder.glob(f"{_prefix(kind)}*.json") if folder.is_dir() else ()
    return {path.name.removeprefix(_prefix(kind)).removesuffix(".json") for path in files}


def spec_path(folder: Path, name: str, kind: str) -> Path:
    """The file of one device."""
    return folder / f"{_prefix(kind)}{name}.json"


def _prefix(kind: str) -> str:
    return f"{kind.replace('/', '-')}_"
