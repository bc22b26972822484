"""A node as its doctor knows it: facts, without judgement. `reading` makes them; a test writes them down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from aliquot.node.doctor.runtime import Runtime

SocketState = Literal["answers", "refuses", "missing", "barred"]
"""A process listens; a stale socket file; no file; no permission to check."""
FolderState = Literal["writable", "missing", "read-only", "full", "barred", "no folder"]


@dataclass(frozen=True)
class Kubelet:
    """Kubelet's side: its two sockets and its device checkpoint.

    `plugins` are the sockets of device plugins; `offered` counts the devices of each resource by the checkpoint, None
    where that cannot be read; `cdi` is False where its feature gate was put off.
    """

    registration: SocketState = "answers"
    pod_resources: SocketState = "answers"
    plugins: Mapping[str, SocketState] = field(default_factory=dict)
    offered: Mapping[str, int] | None = field(default_factory=dict)
    cdi: bool = True


@dataclass(frozen=True)
class Arbiter:
    """The arbiter: empty `trouble` when it answers. `unregistered` counts programs bypassing Aliquot, if `compared`;
    `turns` is its turn policy."""

    trouble: str = ""
    tenants: int = 0
    compared: bool = False
    unregistered: int = 0
    turns: str = "fluid"


@dataclass(frozen=True)
class Cgroups:
    """The hierarchy: version 0 is none at all; `given` are the controllers that pods have, None without pods.

    `whole` is False where only a container's part of it is visible; then the rest means nothing.
    """

    version: int = 2
    read_only: bool = False
    known: frozenset[str] = frozenset({"cpu", "memory", "pids"})
    given: frozenset[str] | None = frozenset({"cpu", "memory", "pids"})
    whole: bool = True


@dataclass(frozen=True)
class Folders:
    """Where the agent writes: its state, the CDI files, the tenants."""

    state: FolderState = "writable"
    cdi: FolderState = "writable"
    runtime: FolderState = "writable"
    free_mib: int = 1 << 20


@dataclass(frozen=True)
class KernelSide:
    """The driver in the kernel: its modules, its version, and the device nodes (paths) that programs need and lack.

    `made_for` is the version of the driver's libraries. None for all of it where the GPUs are emulated.
    """

    modules: frozenset[str] = frozenset({"nvidia", "nvidia_uvm"})
    version: str = ""
    made_for: str = ""
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hook:
    """Our library on the node. `trouble` is empty, or why it is missing; `shown` is the driver volume's generation that
    containers get, empty before the agent made one; `current` is whether the hook in it is the installed one.

    `unhooked` are the tenants that got functions past it, or ran without an arbiter, and how.
    """

    trouble: str = ""
    shown: str = ""
    current: bool = True
    unhooked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Host:
    """One node. `checkpoint` is empty, or the problem with the agent's; `driver` the version found, `no_driver` why
    none was found; `gpus` is the owner of the node's GPUs and `turns` the turn policy, as in the agent's
    settings. `open_to_all` is the configuration by which NVIDIA's runtime gives every container the GPUs that a
    variable names, empty where it does not.
    """

    open_to_all: str = ""
    runtime: Runtime | None = field(default_factory=lambda: Runtime("containerd", "/etc/containerd/config.toml", True))
    kubelet: Kubelet = field(default_factory=Kubelet)
    arbiter: Arbiter = field(default_factory=Arbiter)
    cgroups: Cgroups = field(default_factory=Cgroups)
    folders: Folders = field(default_factory=Folders)
    kernel: KernelSide | None = None
    hook: Hook = field(default_factory=Hook)
    checkpoint: str = ""
    driver: str = ""
    no_driver: str = ""
    gpus: str = "own"
    turns: str = "fluid"
    state_dir: str = "/var/lib/aliquot"
    cdi_dir: str = "/run/cdi"
    runtime_dir: str = "/run/aliquot"
    kubelet_dir: str = "/var/lib/kubelet"
