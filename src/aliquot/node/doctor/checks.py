"""The problems of a described node, and their remedies. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from aliquot.driver.modules import MAKE_NODES, MODULES
from aliquot.kube.names import GPU_PERCENT
from aliquot.model.findings import Finding
from aliquot.node.doctor.host import Arbiter, Cgroups, FolderState, Host
from aliquot.node.doctor.runtime import UNPRIVILEGED

OURS: Final = GPU_PERCENT.replace("/", "-") + ".sock"
STOCK: Final = "nvidia.com/gpu"
NEEDED: Final = ("cpu", "memory", "pids")
LEAST_FREE_MIB: Final = 16
_RESTART: Final = "restart the node's aliquot pod; check its log"


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
        way_out = "install the NVIDIA driver, or name its root with --driver-root; to try without: --emulate h100x2"
        yield Finding("driver", "fault", host.no_driver, way_out)
    elif host.driver:
        yield Finding("driver", "ok", host.driver)
    if (kernel := host.kernel) is not None:
        absent = [name for name in MODULES if name not in kernel.modules]
        for name in absent:
            found = f"the kernel module {name} is not loaded"
            if name != "nvidia":
                found += ": programs in containers fail at cuInit with 999"
            yield Finding(
                "kernel module", "fault", found, f"{MAKE_NODES} on the node, at each boot; or modprobe {name}"
            )
        if kernel.version and kernel.made_for and kernel.version != kernel.made_for:
            found = f"the kernel module is {kernel.version} and the libraries are {kernel.made_for}: neither works so"
            way_out = "load the new module: boot the node, or unload and load nvidia"
            yield Finding("kernel module", "fault", found, way_out)
        elif not absent:
            yield Finding("kernel module", "ok", f"nvidia and nvidia_uvm, {kernel.version or 'version unknown'}")
        for path in kernel.missing:
            number = path.rpartition("/nvidia")[2]
            way_out = f"nvidia-modprobe -c={number}" if number.isdigit() else MAKE_NODES
            yield Finding("device node", "fault", f"{path} is missing", f"{way_out} on the node")
        if not kernel.missing:
            yield Finding("device nodes", "ok", "the GPUs' and the driver's own")
    hook = host.hook
    if hook.trouble:
        yield Finding("hook", "fault", hook.trouble, "install the wheel again, or use an image that is whole")
    elif not hook.shown:
        yield Finding("hook", "note", "no container is shown it yet", "the agent does that when it starts")
    elif not hook.current:
        found = f"containers are shown another one than is installed here, with driver {hook.shown}"
        yield Finding("hook", "note", found, f"{_RESTART}; running containers keep theirs")
    else:
        yield Finding("hook", "ok", f"stands before driver {hook.shown} in new containers")
    for tenant in hook.unhooked:
        way_out = "its share or memory limit may not hold; report the driver's version with this line"
        yield Finding("hook", "fault", tenant, way_out)


def _runtime(host: Host) -> Iterator[Finding]:
    runtime, cdi_dir, what = host.runtime, host.cdi_dir, "container runtime"
    if runtime is None and host.kubelet.registration == "answers":
        found = "kubelet runs, so a runtime exists, but neither containerd nor CRI-O is visible from here"
        yield Finding(what, "note", found, "mount the node's root, and name it with --root")
        return
    if runtime is None:
        way_out = "run containerd or CRI-O, and name its socket to kubelet (containerRuntimeEndpoint)"
        yield Finding(what, "fault", "neither containerd nor CRI-O was found", way_out)
        return
    where = f"in {runtime.config} and restart {runtime.name}" if runtime.config else f"and restart {runtime.name}"
    # /var/run is /run on every system that has both.
    folders = [f.removeprefix("/var") if f.startswith("/var/run/") else f.rstrip("/") for f in runtime.folders]
    if runtime.trouble:
        yield Finding(what, "fault", f"its configuration cannot be read: {runtime.trouble}", f"fix it {where}")
    elif not runtime.serves_kubelet:
        yield Finding(what, "fault", "containerd's CRI plugin is disabled", f"take cri out of disabled_plugins {where}")
    elif runtime.cdi is False:
        found = f"{runtime.name} has CDI off, so a container's GPU is never added to it"
        yield Finding(what, "fault", found, f"set enable_cdi = true {where}")
    elif cdi_dir not in folders:
        found = f"{runtime.name} reads CDI files in {', '.join(runtime.folders) or 'no folder'}, not in {cdi_dir}"
        way_out = f"add {cdi_dir} to cdi_spec_dirs {where}, or give the agent --cdi-dir"
        yield Finding(what, "fault", found, way_out)
    elif runtime.cdi is None:
        found = f"{runtime.name} has no setting for CDI, which is off before 2.0"
        yield Finding(what, "note", found, f"set enable_cdi = true {where}")
    else:
        yield Finding(what, "ok", f"{runtime.name} reads CDI files in {cdi_dir}")
    if host.open_to_all and "nvidia" in runtime.default:
        found = (
            "NVIDIA's runtime is the default and serves NVIDIA_VISIBLE_DEVICES: every pod whose image sets it to all, "
            "as those of CUDA do, has all GPUs without a share"
        )
        way_out = f"set {UNPRIVILEGED} = false in {host.open_to_all}, and node.privileged: true in the chart"
        yield Finding("NVIDIA's runtime", "fault", found, way_out)


def _kubelet(host: Host) -> Iterator[Finding]:
    """Kubelet, and the stock device plugin beside ours."""
    kubelet, folder = host.kubelet, host.kubelet_dir
    start = "start kubelet (systemctl status kubelet); where its root is another folder, give --kubelet-dir"
    plugins = f"{folder}/device-plugins"
    faults = []
    if kubelet.registration == "missing":
        found = f"{plugins}/kubelet.sock is missing: no device plugin can register"
        faults.append(Finding("kubelet", "fault", found, start))
    elif kubelet.registration == "refuses":
        found = f"{plugins}/kubelet.sock is left over: no process listens there"
        faults.append(Finding("kubelet", "fault", found, start))
    elif kubelet.registration == "barred":
        faults.append(Finding("kubelet", "note", f"{plugins} cannot be read", "run as root"))
    if kubelet.registration == "answers" and kubelet.pod_resources in ("missing", "refuses"):
        found = f"{folder}/pod-resources/kubelet.sock does not answer: the agent cannot identify starting containers"
        faults.append(Finding("PodResources", "fault", found, f"is it mounted from the node? {start}"))
    if not kubelet.cdi:
        found = "the feature gate DevicePluginCDIDevices is off: kubelet drops what the plugin answers"
        faults.append(Finding("kubelet", "fault", found, "take it out of featureGates in kubelet's configuration"))
    if kubelet.offered is None:
        found = f"{plugins}/kubelet_internal_checkpoint cannot be read: devices of init containers have no owner"
        way_out = "drain the node, remove the file, restart kubelet: it writes a new one"
        faults.append(Finding("kubelet's checkpoint", "fault", found, way_out))
    yield from faults or [Finding("kubelet", "ok", f"takes device plugins and answers below {folder}")]
    running = [n for n, state in kubelet.plugins.items() if n.startswith("nvidia") and state == "answers"]
    count = (kubelet.offered or {}).get(STOCK, 0)
    if running and count and host.gpus == "own":
        found = f"another device plugin offers {count} {STOCK} here ({running[0]}): kubelet may give one GPU away twice"
        way_out = "take NVIDIA's plugin off this node (its nodeSelector), or run the agent with --gpus coexist"
        yield Finding("stock plugin", "fault", found, way_out)
    elif running and count:
        yield Finding("stock plugin", "ok", f"offers {count} {STOCK}; what holder pods hold of them is shared")


def _agent(host: Host) -> Iterator[Finding]:
    state = host.kubelet.plugins.get(OURS, "barred" if host.kubelet.registration == "barred" else "missing")
    where = f"{host.kubelet_dir}/device-plugins/{OURS}"
    if state == "refuses":
        found = f"{where} is left over: the agent that made it is gone"
        yield Finding("agent", "fault", found, f"{_RESTART}; it puts a new socket in its place")
    elif state == "missing":
        found = f"no agent serves {GPU_PERCENT}: {where} is missing"
        yield Finding("agent", "fault", found, f"run aliquot node here, or {_RESTART}")
    elif state == "answers" and host.kubelet.offered is not None:
        if count := host.kubelet.offered.get(GPU_PERCENT, 0):
            yield Finding("agent", "ok", f"offers {count} {GPU_PERCENT}")
        else:
            found = f"it serves, but kubelet offers no {GPU_PERCENT}: not registered, or withdrawn"
            yield Finding("agent", "fault", found, "the agent's log says why (unfit, not-registered)")
    for name, other in sorted(host.kubelet.plugins.items()):
        if name != OURS and other == "refuses":
            found = f"{name} in the folder of device plugins is left over: no process listens there"
            yield Finding("stale socket", "note", found, "remove it, or restart the plugin that it belongs to")
    if host.checkpoint:
        way_out = "the agent sets it aside and rebuilds it from kubelet and the pods' plans when it starts"
        yield Finding("agent's checkpoint", "fault", host.checkpoint, f"{_RESTART}; {way_out}")


def _arbiter(arbiter: Arbiter, turns: str, runtime_dir: str) -> Iterator[Finding]:
    if arbiter.trouble:
        started = f"aliquot arbiter --runtime-dir {runtime_dir}"
        way_out = f"restart the arbiter's container ({started}); check its log"
        yield Finding("arbiter", "fault", arbiter.trouble, way_out)
        return
    yield Finding("arbiter", "ok", f"answers; turns: {arbiter.turns}; tenants: {arbiter.tenants}")
    if arbiter.turns != turns:
        found = f"it gives turns as {arbiter.turns}, the agent's settings say {turns}"
        yield Finding("turns", "fault", found, f"restart it with --turns {turns}, or set turns for both")
    if arbiter.unregistered:
        found = f"programs on shared GPUs that did not register: {arbiter.unregistered}"
        way_out = "the events GpuUnregisteredProcess name their pods; --audit-kill ends them"
        yield Finding("unregistered", "note", found, way_out)


_FOLDER_FAULTS: Final[Mapping[FolderState, tuple[str, str, str]]] = {
    "full": ("fault", "the disk of {} is full", "make room: nothing new is allocated until it can be written"),
    "read-only": (
        "fault", "{} is mounted read-only",
        "mount it writable (mount -o remount,rw; fsck where the kernel did that after an error)",
    ),
    "no folder": ("fault", "{} is not a folder", "move the file, the agent creates the folder"),
    "missing": ("note", "{} does not exist yet", "the agent creates it when it starts"),
    "barred": ("note", "{} cannot be tested from here", "run as root, with a writable --root"),
}  # fmt: skip


def _folders(host: Host) -> Iterator[Finding]:
    listed = (
        ("state", host.state_dir, host.folders.state),
        ("CDI files", host.cdi_dir, host.folders.cdi),
        ("tenants", host.runtime_dir, host.folders.runtime),
    )
    faults = []
    for what, folder, state in listed:
        if state in _FOLDER_FAULTS:
            level, found, way_out = _FOLDER_FAULTS[state]
            faults.append(Finding(what, level, found.format(folder), way_out))
    if not faults and host.folders.free_mib < LEAST_FREE_MIB:
        found = f"{host.state_dir} has {host.folders.free_mib} MiB left"
        faults = [Finding("state", "fault", found, "make room: without its checkpoint the agent allocates nothing")]
    yield from faults or [Finding("folders", "ok", "state, CDI files and tenants can be written")]


def _cgroups(cgroups: Cgroups) -> Finding:
    missing = [name for name in NEEDED if name not in cgroups.known]
    withheld = [name for name in NEEDED if cgroups.given is not None and name not in cgroups.given]
    level = "fault"
    if not cgroups.whole:
        level, found = "note", "only those of a container are visible from here"
        way_out = "mount the node's root, and name it with --root"
    elif cgroups.version == 0:
        found = "no cgroups below /sys/fs/cgroup"
        way_out = "mount cgroup2 at /sys/fs/cgroup; in a container, give --root with the node's root mounted"
    elif cgroups.version == 1:
        level, way_out = "note", "boot with systemd.unified_cgroup_hierarchy=1"
        found = (
            "version 1: kubelet refuses it by default since 1.35, and limits by the driver (enforced) need version 2"
        )
    elif cgroups.read_only:
        found = "/sys/fs/cgroup is mounted read-only: no container can be started"
        way_out = "mount -o remount,rw /sys/fs/cgroup on the node"
    elif missing:
        found = f"the kernel has no controller {', '.join(missing)}"
        way_out = "take cgroup_disable off the kernel's command line, and boot"
    elif withheld:
        found = f"pods do not get the controller {', '.join(withheld)}"
        way_out = "delegate it: Delegate=yes for kubelet's unit, + its name in cgroup.subtree_control of each parent"
    else:
        return Finding("cgroups", "ok", "version 2, with cpu, memory and pids for pods")
    return Finding("cgroups", level, found, way_out)


def _protection(arbiter: Arbiter) -> Finding:
    if arbiter.compared:
        found = "audited: a library in each program enforces shares; a program that bypasses it is found and reported"
        return Finding("protection", "ok", found)
    found = "cooperative: a library in each program enforces shares; a program that bypasses it is not noticed"
    way_out = "give the arbiter --libnvml and the host's process numbers (hostPID), so that NVML can be compared"
    return Finding("protection", "note", found, "" if arbiter.trouble else way_out)
