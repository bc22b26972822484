"""A node as its doctor knows it, and its problems: when each is found. What is said of one is in findings.toml.

Pure: `reading` makes the facts; a test writes them down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec

from aliquot.driver.modules import MAKE_NODES, MODULES
from aliquot.kube.names import GPU_PERCENT
from aliquot.model.findings import Finding
from aliquot.node.doctor.runtime import UNPRIVILEGED, Runtime

OURS: Final = GPU_PERCENT.replace("/", "-") + ".sock"
STOCK: Final = "nvidia.com/gpu"
NEEDED: Final = ("cpu", "memory", "pids")
LEAST_FREE_MIB: Final = 16
_RESTART: Final = "restart the node's aliquot pod; check its log"
_WORDS: Final = msgspec.toml.decode(
    Path(__file__).with_name("findings.toml").read_bytes(), type=dict[str, dict[str, str]]
)


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


def finding(name: str, /, **facts: object) -> Finding:
    """The finding of that name in findings.toml, with these facts in its sentences."""
    words = _WORDS[name]
    way_out = words.get("way_out", "").format(restart=_RESTART, **facts)
    state = words.get("state", "fault" if way_out else "ok")
    return Finding(words["what"].format(**facts), state, words["found"].format(**facts), way_out)


def examine(host: Host) -> list[Finding]:
    """Everything, in the order in which a container's start needs it."""
    return [
        *_driver(host),
        *_runtime(host),
        *_kubelet(host),
        *_agent(host),
        *_arbiter(host.arbiter, host.turns, host.runtime_dir),
        *_folders(host),
        _cgroups(host.cgroups),
        _protection(host.arbiter),
    ]


def _driver(host: Host) -> Iterator[Finding]:
    """The driver's files, its kernel modules and device nodes, and our library before it."""
    if host.no_driver:
        yield finding("no-driver", why=host.no_driver)
    elif host.driver:
        yield finding("driver", driver=host.driver)
    if (kernel := host.kernel) is not None:
        absent = [name for name in MODULES if name not in kernel.modules]
        for module in absent:
            name = "no-nvidia-module" if module == "nvidia" else "no-uvm-module"
            yield finding(name, module=module, make_nodes=MAKE_NODES)
        if kernel.version and kernel.made_for and kernel.version != kernel.made_for:
            yield finding("other-module", kernel=kernel)
        elif not absent:
            yield finding("modules", version=kernel.version or "version unknown")
        for path in kernel.missing:
            number = path.rpartition("/nvidia")[2]
            yield finding(
                "no-node", path=path, command=f"nvidia-modprobe -c={number}" if number.isdigit() else MAKE_NODES
            )
        if not kernel.missing:
            yield finding("nodes")
    hook = host.hook
    if hook.trouble:
        yield finding("no-hook", hook=hook)
    elif not hook.shown:
        yield finding("hook-not-shown")
    else:
        yield finding("hook" if hook.current else "other-hook", hook=hook)
    for tenant in hook.unhooked:
        yield finding("unhooked", tenant=tenant)


def _runtime(host: Host) -> Iterator[Finding]:
    runtime, cdi_dir = host.runtime, host.cdi_dir
    if runtime is None:
        yield finding("runtime-hidden" if host.kubelet.registration == "answers" else "no-runtime")
        return
    where = f"in {runtime.config} and restart {runtime.name}" if runtime.config else f"and restart {runtime.name}"
    # /var/run is /run on every system that has both.
    folders = [f.removeprefix("/var") if f.startswith("/var/run/") else f.rstrip("/") for f in runtime.folders]
    states = {
        "runtime-unreadable": runtime.trouble,
        "cri-disabled": not runtime.serves_kubelet,
        "cdi-off": runtime.cdi is False,
        "cdi-elsewhere": cdi_dir not in folders,
        "cdi-not-set": runtime.cdi is None,
        "runtime": True,
    }
    name = next(name for name, holds in states.items() if holds)
    listed = ", ".join(runtime.folders) or "no folder"
    yield finding(name, runtime=runtime, where=where, listed=listed, cdi_dir=cdi_dir)
    if host.open_to_all and "nvidia" in runtime.default:
        yield finding("open-to-all", setting=UNPRIVILEGED, file=host.open_to_all)


def _kubelet(host: Host) -> Iterator[Finding]:
    """Kubelet, and the stock device plugin beside ours."""
    kubelet, folder = host.kubelet, host.kubelet_dir
    start = "start kubelet (systemctl status kubelet); where its root is another folder, give --kubelet-dir"
    silent = kubelet.registration == "answers" and kubelet.pod_resources in ("missing", "refuses")
    states = {
        "no-kubelet": kubelet.registration == "missing",
        "kubelet-ended": kubelet.registration == "refuses",
        "kubelet-barred": kubelet.registration == "barred",
        "no-pod-resources": silent,
        "kubelet-without-cdi": not kubelet.cdi,
        "kubelet-checkpoint": kubelet.offered is None,
    }
    for name in [name for name, holds in states.items() if holds] or ["kubelet"]:
        yield finding(name, plugins=f"{folder}/device-plugins", folder=folder, start=start)
    running = [n for n, state in kubelet.plugins.items() if n.startswith("nvidia") and state == "answers"]
    count = (kubelet.offered or {}).get(STOCK, 0)
    if running and count:
        name = "stock-plugin" if host.gpus == "own" else "coexisting"
        yield finding(name, count=count, stock=STOCK, plugin=running[0])


def _agent(host: Host) -> Iterator[Finding]:
    kubelet = host.kubelet
    state = kubelet.plugins.get(OURS, "barred" if kubelet.registration == "barred" else "missing")
    count = (kubelet.offered or {}).get(GPU_PERCENT, 0)
    served = "agent" if count else "nothing-offered" if kubelet.offered is not None else ""
    name = {"refuses": "agent-ended", "missing": "no-agent", "answers": served}.get(state)
    if name:
        yield finding(name, where=f"{host.kubelet_dir}/device-plugins/{OURS}", resource=GPU_PERCENT, count=count)
    for plugin, other in sorted(kubelet.plugins.items()):
        if plugin != OURS and other == "refuses":
            yield finding("stale-socket", name=plugin)
    if host.checkpoint:
        yield finding("checkpoint", trouble=host.checkpoint)


def _arbiter(arbiter: Arbiter, turns: str, runtime_dir: str) -> Iterator[Finding]:
    if arbiter.trouble:
        yield finding("no-arbiter", arbiter=arbiter, runtime_dir=runtime_dir)
        return
    yield finding("arbiter", arbiter=arbiter)
    if arbiter.turns != turns:
        yield finding("other-turns", arbiter=arbiter, turns=turns)
    if arbiter.unregistered:
        yield finding("unregistered", arbiter=arbiter)


def _folders(host: Host) -> Iterator[Finding]:
    listed = (
        ("state", host.state_dir, host.folders.state),
        ("CDI files", host.cdi_dir, host.folders.cdi),
        ("tenants", host.runtime_dir, host.folders.runtime),
    )
    faults = [finding(state, what=what, folder=folder) for what, folder, state in listed if state != "writable"]
    if not faults and host.folders.free_mib < LEAST_FREE_MIB:
        faults = [finding("little-room", folder=host.state_dir, free_mib=host.folders.free_mib)]
    yield from faults or [finding("folders")]


def _cgroups(cgroups: Cgroups) -> Finding:
    missing = [name for name in NEEDED if name not in cgroups.known]
    withheld = [name for name in NEEDED if cgroups.given is not None and name not in cgroups.given]
    states = {
        "cgroups-hidden": not cgroups.whole,
        "no-cgroups": cgroups.version == 0,
        "old-cgroups": cgroups.version == 1,
        "read-only-cgroups": cgroups.read_only,
        "missing-controllers": missing,
        "withheld-controllers": withheld,
        "cgroups": True,
    }
    name = next(name for name, holds in states.items() if holds)
    return finding(name, names=", ".join(missing or withheld))


def _protection(arbiter: Arbiter) -> Finding:
    if arbiter.compared:
        return finding("audited")
    return finding("cooperative-without-arbiter" if arbiter.trouble else "cooperative")
