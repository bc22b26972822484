"""Reads a node: its own root, or another that is mounted somewhere. It changes only a file that it creates and removes.

A path is the node's own; `root` is where the node's root is mounted. What may not be read, as by a user who
is not root, is distinguished from what does not exist only where the remedies differ.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
import re
import shutil
import socket
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from aliquot.arbiter.client import ArbiterClient, ArbiterError
from aliquot.arbiter.records import unhooked
from aliquot.driver import modules
from aliquot.driver.native import STANDS_FOR, NativePartMissing, native_part
from aliquot.driver.volume.source import DRIVER_CONTAINER, NoDriverFiles, find_source, loaded_version
from aliquot.driver.volume.volume import CURRENT, SHARED
from aliquot.kube.manifest import BadYaml, read_yaml_file
from aliquot.node.allocation.checkpoint import read_checkpoint
from aliquot.node.allocation.kubelet import offered
from aliquot.node.doctor.checks import (
    Arbiter,
    Cgroups,
    Folders,
    FolderState,
    Hook,
    Host,
    KernelSide,
    Kubelet,
    SocketState,
)
from aliquot.node.doctor.runtime import Runtime, containerd, crio, imports_of, takes_variable
from aliquot.node.settings import NodeSettings

_PLACES: Final = msgspec.toml.decode(Path(__file__).with_name("places.toml").read_bytes())
CDI_GATE: Final = "DevicePluginCDIDevices"
PROBE_BYTES: Final = 64 << 10
FIRST_CGROUP_NAMESPACE: Final = 0xEFFFFFFB
_RELEASE: Final = re.compile(r"\bv?(\d+)\.(\d+)\.\d+")
_PODS: Final = ("kubepods.slice", "kubepods")


def read_host(settings: NodeSettings, root: Path = Path("/")) -> Host:
    """The node by the settings of its agent."""
    driver, no_driver, kernel = _driver(settings, root)
    arbiter, unhooked = _arbiter(below(root, settings.runtime_dir))
    state_dir = below(root, settings.state_dir)
    # Such a mount of the node's root hides whether the node itself can write there.
    mounted_read_only = root != Path("/") and _read_only(root)

    def state_of(name: str) -> FolderState:
        state = folder_state(below(root, name))
        return "barred" if mounted_read_only and state == "read-only" else state

    contained = False
    if root == Path("/"):
        # The first cgroup namespace has a number that never changes: Linux, include/linux/proc_ns.h,
        # PROC_CGROUP_INIT_INO.
        with contextlib.suppress(OSError):
            contained = Path("/proc/self/ns/cgroup").stat().st_ino != FIRST_CGROUP_NAMESPACE
    return Host(
        runtime=_runtime(root, Path(settings.kubelet_dir)),
        open_to_all=_open_to_all(root),
        kubelet=_kubelet(root, Path(settings.kubelet_dir)),
        arbiter=arbiter,
        kernel=kernel,
        hook=replace(_hook(below(root, settings.driver_volume)), unhooked=unhooked),
        cgroups=read_cgroups(below(root, "/sys/fs/cgroup"), contained=contained),
        folders=Folders(
            state_of(settings.state_dir),
            state_of(settings.cdi_dir),
            state_of(settings.runtime_dir),
            shutil.disk_usage(state_dir).free >> 20 if _there(state_dir) else 1 << 20,
        ),
        checkpoint=_checkpoint(below(root, str(settings.checkpoint))),
        driver=driver,
        no_driver=no_driver,
        gpus=settings.gpus,
        turns=settings.turns,
        state_dir=settings.state_dir,
        cdi_dir=settings.cdi_dir,
        runtime_dir=settings.runtime_dir,
        kubelet_dir=settings.kubelet_dir,
    )


def below(root: Path, path: str | Path) -> Path:
    """Where a path of the node is from here."""
    return root / str(path).lstrip("/")


def socket_state(path: Path) -> SocketState:
    """Whether a process listens. The folder is entered by descriptor, since a socket's path has at most 107 bytes."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return "barred"
    except OSError:
        return "missing"
    try:
        if not path.exists():
            return "missing"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(2.0)
            sock.connect(f"/proc/self/fd/{folder}/{path.name}")
    except PermissionError:
        return "barred"
    except OSError:
        return "refuses"
    finally:
        os.close(folder)
    return "answers"


def folder_state(folder: Path) -> FolderState:
    """Whether a file can be written there, to the disk; a test file is created and removed."""
    try:
        if not folder.exists():
            return "missing"
        if not folder.is_dir():
            return "no folder"
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * PROBE_BYTES)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                return "full"
            case errno.EROFS:
                return "read-only"
            case _:
                return "barred"
    return "writable"


def read_cgroups(top: Path, *, contained: bool = False) -> Cgroups:
    """The hierarchy mounted at `top`; `contained` is whether that is a container's own view."""
    try:
        known = frozenset((top / "cgroup.controllers").read_text().split())
    except OSError:
        version = 1 if _there(top / "memory") or _there(top / "cpu") else 0
        return Cgroups(version=version, whole=not contained)
    given = None
    for pods in _PODS:
        file = top / pods / "cgroup.controllers"
        with contextlib.suppress(OSError):
            given = frozenset(file.read_text().split())
    return Cgroups(2, _read_only(top), known, given, whole=not contained)


# -- inside -----------------------------------------------------------------------------------------------------------


def _there(path: Path) -> bool:
    """Whether a file exists there and is visible."""
    try:
        return path.exists()
    except OSError:
        return False


def _read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _driver(settings: NodeSettings, root: Path) -> tuple[str, str, KernelSide | None]:
    """The driver, why there is none, and its kernel side; /proc is the same for all roots."""
    if settings.emulate:
        return f"emulated, {settings.emulate}", "", None
    try:
        source = find_source(below(root, settings.driver_root), below(root, DRIVER_CONTAINER))
        driver = f"{source.library('libcuda.so').file} (version {source.version or 'unknown'})"
    except NoDriverFiles as error:
        return "", str(error), None
    own = source.root / "dev"
    devices = own if (own / "nvidiactl").exists() else below(root, settings.driver_root) / "dev"
    missing = [f"/{path.relative_to(root)}" for path in modules.missing_nodes(devices, modules.minors().values())]
    return driver, "", KernelSide(modules.loaded(), loaded_version(), source.version, tuple(missing))


def _runtime(root: Path, kubelet_dir: Path) -> Runtime | None:
    """The runtime that kubelet's configuration names; otherwise the one whose socket or configuration exists."""
    named = str(_kubelet_configuration(below(root, kubelet_dir)).get("containerRuntimeEndpoint") or "")
    crio_socket, crio_files = _PLACES["crio_socket"], _PLACES["crio"]
    sockets = [socket for socket, _ in _PLACES["containerd"]] + [crio_socket]
    wanted = [socket for socket in sockets if named.replace("/var/run/", "/run/").endswith(socket)]
    for socket_path, config in _PLACES["containerd"]:
        if wanted and socket_path not in wanted:
            continue
        if _there(below(root, config)) or socket_path in wanted or _there(below(root, socket_path)):
            return _containerd(root, config)
    if crio_socket not in wanted and not any(_there(below(root, path)) for path in (crio_socket, *crio_files)):
        return None
    main, folder = (below(root, path) for path in crio_files)
    try:
        files = [path for path in (main, *sorted(folder.glob("*"))) if path.is_file()]
        texts = [(f"/{path.relative_to(root)}", path.read_text()) for path in files]
    except (OSError, ValueError) as error:
        return replace(crio(crio_files[0], ()), trouble=str(error))
    return crio(crio_files[0], texts)


def _containerd(root: Path, config: str) -> Runtime:
    """containerd by its configuration and its release, which the program itself tells where it can be run from here."""
    texts: list[tuple[str, str]] = []
    trouble = ""
    try:
        if _there(below(root, config)):
            texts.append((config, below(root, config).read_text()))
            for pattern in imports_of(texts[0][1], Path(config).parent):
                files = sorted(root.glob(pattern.lstrip("/")))
                texts += [(f"/{path.relative_to(root)}", path.read_text()) for path in files]
    except (OSError, ValueError) as error:
        trouble = str(error)
    release: tuple[int, ...] = ()
    for program in (root / folder / "containerd" for folder in _PLACES["containerd_programs"]):
        if release or not _there(program):
            continue
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False)
            match = _RELEASE.search(done.stdout)
            release = (int(match.group(1)), int(match.group(2))) if match else ()
    made = containerd(config, texts, release)
    return replace(made, trouble=trouble) if trouble else made


def _open_to_all(root: Path) -> str:
    """NVIDIA's configuration, if its runtime serves a variable of unprivileged containers; the first file counts."""
    for name in _PLACES["nvidia"]:
        with contextlib.suppress(OSError, ValueError):
            return name if takes_variable(below(root, name).read_text()) else ""
    return ""


def _kubelet_configuration(folder: Path) -> dict[str, Any]:
    """What kubeadm and others leave in kubelet's root; empty if it cannot be read."""
    try:
        content = read_yaml_file(folder / "config.yaml")
    except BadYaml:
        return {}
    return content if isinstance(content, dict) else {}


def _kubelet(root: Path, folder: Path) -> Kubelet:
    plugins = below(root, folder) / "device-plugins"
    gates = _kubelet_configuration(below(root, folder)).get("featureGates")
    sockets = sorted(plugins.glob("*.sock")) if _there(plugins) else []
    return Kubelet(
        registration=socket_state(plugins / "kubelet.sock"),
        pod_resources=socket_state(below(root, folder) / "pod-resources" / "kubelet.sock"),
        plugins={path.name: socket_state(path) for path in sockets if path.name != "kubelet.sock"},
        offered=offered(plugins),
        cdi=not (isinstance(gates, dict) and gates.get(CDI_GATE) is False),
    )


def _hook(volume: Path) -> Hook:
    """The installed library, and the one that new containers get from the driver volume."""
    name = "libcuda.so.1"
    try:
        installed = native_part(STANDS_FOR[name])
    except NativePartMissing as error:
        return Hook(str(error))
    shown = volume / CURRENT / SHARED / "lib64" / name
    if not _there(shown):
        return Hook()
    generation = (volume / CURRENT).readlink().name
    try:
        return Hook(shown=generation, current=filecmp.cmp(installed, shown, shallow=False))
    except OSError as error:
        return Hook(f"{shown} cannot be read ({error.strerror})", generation)


def _arbiter(folder: Path) -> tuple[Arbiter, tuple[str, ...]]:
    """The arbiter, and the tenants that the hook does not hold wholly."""
    state = socket_state(folder / "status.sock")
    if state == "missing":
        return Arbiter(f"no arbiter: {folder}/status.sock is missing"), ()
    if state == "barred":
        return Arbiter(f"{folder}/status.sock may not be used by you; run as root"), ()
    try:
        with ArbiterClient(folder, timeout_s=5.0) as client:
            status = client.status()
            same = client.process() == status.pid
    except (ArbiterError, msgspec.MsgspecError, OSError) as error:
        return Arbiter(f"the arbiter does not answer: {error}"), ()
    names = {tenant.name for gpu in status.gpus for tenant in gpu.tenants}
    programs = {seen.pid for gpu in status.gpus for seen in gpu.unregistered}
    found = Arbiter("", len(names), status.compared and same, len(programs) if status.compared else 0, status.turns)
    return found, tuple(unhooked(status))


def _checkpoint(path: Path) -> str:
    """The problem with the agent's checkpoint; tested on a copy, since the agent's reader sets a damaged one aside."""
    if not _there(path):
        return ""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        try:
            copy.write_bytes(path.read_bytes())
        except PermissionError:
            return ""  # the state folder is reported as one that cannot be tested
        except OSError as error:
            return f"{path} cannot be read ({error.strerror})"
        trouble = read_checkpoint(copy)[1]
    return f"{path}{trouble.removeprefix(str(copy)).partition(';')[0]}" if trouble else ""
