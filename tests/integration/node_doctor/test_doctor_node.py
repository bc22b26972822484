"""`aliquot doctor --node` on a node that lies in a folder, with real sockets, files and an arbiter, broken in one way.

A cgroup hierarchy that is mounted read-only, and one whose controllers pods do not get, are seen by units only.
"""

import contextlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.arbiter import RunningArbiter
from kubelet_stand_in import KubeletStandIn
from rights import rooms

from aliquot.cli.main import cli
from aliquot.driver.native import EMULATED_CUDA, EMULATED_NVML, native_part
from aliquot.node.allocation.checkpoint import Content, write_checkpoint
from aliquot.node.doctor.reading import folder_state, read_cgroups, read_host, socket_state
from aliquot.node.driver import open_driver
from aliquot.node.settings import NodeSettings

CONFIG = "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = {}\ncdi_spec_dirs = ['/etc/cdi', '{}']\n"
KEPT = {"Data": {"PodDeviceEntries": None, "RegisteredDevices": {"aliquot.dev/gpu-percent": ["g0-000", "g0-001"]}}}
OURS = "aliquot.dev-gpu-percent.sock"


class Node:
    """A sound node below `root` with an emulated GPU; its arbiter is real, kubelet is the stand-in."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="aq-"))
        self.listeners: list[socket.socket] = []
        for folder in ("etc/containerd", "run/cdi", "run/aliquot", "var/lib/aliquot", "sys/fs/cgroup"):
            (self.root / folder).mkdir(parents=True)
        (self.root / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory pids\n")
        self.containerd = self.root / "etc/containerd/config.toml"
        self.containerd.write_text(CONFIG.format("true", "/var/run/cdi"))
        self.kubelet = KubeletStandIn(self.root / "var/lib/kubelet")
        self.kubelet.start()
        self.plugins = self.kubelet.plugins_folder
        self.kept = self.plugins / "kubelet_internal_checkpoint"
        self.kept.write_text(json.dumps(KEPT))
        self.listen(OURS)
        self.checkpoint = self.root / "var/lib/aliquot/node-checkpoint.json"
        write_checkpoint(self.checkpoint, Content("node-1"))
        self.settings = self.root / "node.yaml"
        self.settings.write_text("emulate: v100\n")
        self.arbiter = RunningArbiter(self.root / "run/aliquot", "")

    def listen(self, name: str) -> socket.socket:
        """A device plugin's socket that somebody listens at."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.bind(str(self.plugins / name))
        made.listen()
        self.listeners.append(made)
        return made

    def close(self) -> None:
        """Ends everything."""
        for listener in self.listeners:
            listener.close()
        self.kubelet.stop()
        self.arbiter.kill()
        shutil.rmtree(self.root)


@pytest.fixture(scope="module")
def made() -> Iterator[Node]:
    """One node for the file; every test mends what it broke, but for the last one."""
    with contextlib.closing(Node()) as node:
        yield node


def command(node: Node, *words: str) -> tuple[int, str]:
    """Exit status and what is printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = cli.main(
            ["doctor", "--node", "--root", str(node.root), "--config", str(node.settings), *words],
            standalone_mode=False,
        )
    return int(status), said.getvalue()


def doctor(node: Node) -> tuple[int, list[dict[str, str]]]:
    """Exit status, and what is not well."""
    status, said = command(node, "-o", "json")
    told: dict[str, Any] = json.loads(said)
    assert told["ok"] == (status == 0)
    return status, [finding for finding in told["findings"] if finding["state"] == "fault"]


def test_a_sound_node_is_sound(made: Node):
    """Through a root that is mounted somewhere, with nothing found to mend."""
    assert (0, []) == doctor(made)


def rewritten(file: Callable[[Node], Path], content: bytes) -> Callable[[Node], Callable[[], object]]:
    """Breaks a node by another content of a file; what it answers mends it."""

    def breaks(node: Node) -> Callable[[], object]:
        before = file(node).read_bytes()
        file(node).write_bytes(content)
        return lambda: file(node).write_bytes(before)

    return breaks


def moved(file: Callable[[Node], Path]) -> Callable[[Node], Callable[[], object]]:
    """Breaks a node by taking a file away."""

    def breaks(node: Node) -> Callable[[], object]:
        away = file(node).rename(node.root / "away")
        return lambda: away.rename(file(node))

    return breaks


def dead_plugin(node: Node) -> Callable[[], object]:
    """Our agent was killed: its socket stays and nobody listens."""
    node.listeners.pop(0).close()

    def mend() -> None:
        (node.plugins / OURS).unlink()
        node.listeners.insert(0, node.listen(OURS))
        node.listeners.pop()

    return mend


def stock_plugin(node: Node) -> Callable[[], object]:
    """NVIDIA's plugin registered for the same GPUs."""
    offered = KEPT["Data"]["RegisteredDevices"] | {"nvidia.com/gpu": ["GPU-0"]}  # type: ignore[operator]
    node.kept.write_text(json.dumps({"Data": {"RegisteredDevices": offered}}))
    listener = node.listen("nvidia-gpu.sock")

    def mend() -> None:
        node.kept.write_text(json.dumps(KEPT))
        listener.close()
        node.listeners.remove(listener)
        (node.plugins / "nvidia-gpu.sock").unlink()

    return mend


def kubelet_gone(node: Node) -> Callable[[], object]:
    node.kubelet.stop()
    saved = node.kept.read_bytes()

    def mend() -> None:
        for listener in node.listeners:
            listener.close()
        node.listeners.clear()
        node.kubelet.start()
        node.kept.write_bytes(saved)
        node.listen(OURS)

    return mend


def no_state_folder(node: Node) -> Callable[[], object]:
    """Something else lies where the agent's state belongs."""
    folder = node.root / "var/lib/aliquot"
    away = folder.rename(node.root / "state")
    folder.write_text("")

    def mend() -> None:
        folder.unlink()
        away.rename(folder)

    return mend


BREAKS: dict[str, tuple[Callable[[Node], Callable[[], object]], str, str]] = {
    "CDI is off": (
        rewritten(lambda n: n.containerd, CONFIG.format("false", "/run/cdi").encode()),
        "container runtime", "containerd has CDI off",
    ),
    "CDI files are read elsewhere": (
        rewritten(lambda n: n.containerd, CONFIG.format("true", "/srv/cdi").encode()),
        "container runtime", "in /etc/cdi, /srv/cdi, not in /run/cdi",
    ),
    "containerd's configuration is damaged": (
        rewritten(lambda n: n.containerd, b"version = "), "container runtime", "/etc/containerd/config.toml: ",
    ),
    "containerd's configuration has a word for a number": (
        rewritten(lambda n: n.containerd, b"version = 'two'"), "container runtime", "Expected `int`, got `str`",
    ),
    "the agent is dead": (dead_plugin, "agent", "is left over: the agent that made it is gone"),
    "a stock plugin": (stock_plugin, "stock plugin", "offers 1 nvidia.com/gpu here (nvidia-gpu.sock)"),
    "kubelet is gone": (kubelet_gone, "kubelet", "kubelet.sock is missing"),
    "PodResources is gone": (moved(lambda n: n.kubelet.pod_resources), "PodResources", "does not answer"),
    "kubelet's checkpoint is damaged": (
        rewritten(lambda n: n.kept, b"{"), "kubelet's checkpoint", "kubelet_internal_checkpoint cannot be read",
    ),
    "the agent's checkpoint is damaged": (
        rewritten(lambda n: n.checkpoint, b"{}\n{}\n"), "agent's checkpoint", "checkpoint.json is not a checkpoint",
    ),
    "state is not a folder": (no_state_folder, "state", "/var/lib/aliquot is not a folder"),
    "no cgroups": (moved(lambda n: n.root / "sys/fs/cgroup"), "cgroups", "no cgroups below /sys/fs/cgroup"),
    "a controller is missing": (
        rewritten(lambda n: n.root / "sys/fs/cgroup/cgroup.controllers", b"cpu pids\n"), "cgroups", "controller memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_node_is_told_and_mended(made: Node, name: str):
    """The fault is the first that is named, with a way out; once it is mended nothing is left to tell."""
    breaks, what, found = BREAKS[name]
    mend = breaks(made)
    try:
        status, (fault, *_) = doctor(made)
    finally:
        mend()

    assert (1, what, True, True) == (status, fault["what"], found in fault["found"], bool(fault["way_out"]))
    assert (0, []) == doctor(made)


def test_what_is_not_seen_from_here_is_no_fault(made: Node):
    """A container that has kubelet's folders, not the node's /etc cannot judge the runtime; it says what it needs."""
    mend = moved(lambda n: n.containerd)(made)
    status, said = command(made)
    mend()

    assert (0, True) == (status, "mount the node's root, and name it with --root" in said)


def test_a_damaged_checkpoint_is_left_where_it_is(made: Node):
    """A doctor looks; setting it aside is the agent's."""
    before = made.checkpoint.read_bytes()
    made.checkpoint.write_bytes(b"nothing")
    doctor(made)

    assert b"nothing" == made.checkpoint.read_bytes()
    made.checkpoint.write_bytes(before)


def test_the_table_names_fault_and_way_out(made: Node):
    """For people: the state first, the way out on a line of its own."""
    mend = BREAKS["CDI is off"][0](made)
    status, said = command(made)
    mend()

    lines = said.splitlines()
    assert 1 == status
    assert any(line.startswith("fault  container runtime  containerd has CDI off") for line in lines)
    assert any(
        "-> set enable_cdi = true in /etc/containerd/config.toml and restart containerd" in line for line in lines
    )


@rooms
@pytest.mark.parametrize(("options", "expected"), [("size=4k", "full"), ("ro", "read-only")])
def test_a_full_or_read_only_disk_is_tried_not_guessed(tmp_path: Path, options: str, expected: str):
    """By writing, as the agent would."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", tmp_path], check=True)
    try:
        assert expected == folder_state(tmp_path)
        assert [] == list(tmp_path.iterdir())
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_socket_is_known_by_who_listens(tmp_path: Path):
    """However long its path is."""
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with tempfile.TemporaryDirectory(prefix="aq-") as short, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{short}/a.sock")
        listener.listen()
        (deep / "a.sock").hardlink_to(f"{short}/a.sock")
        alive = socket_state(deep / "a.sock")
    dead = socket_state(deep / "a.sock")

    assert ("answers", "refuses", "missing", "missing") == (
        alive, dead, socket_state(deep / "b.sock"), socket_state(tmp_path / "no" / "b.sock"),
    )  # fmt: skip


def test_cgroups_of_either_version_are_told_apart(tmp_path: Path):
    """And what pods were given is read from their own part."""
    (tmp_path / "one/memory").mkdir(parents=True)
    (tmp_path / "two/kubepods.slice").mkdir(parents=True)
    (tmp_path / "two/cgroup.controllers").write_text("cpu io memory pids\n")
    (tmp_path / "two/kubepods.slice/cgroup.controllers").write_text("cpu\n")

    assert [1, 2, 0] == [read_cgroups(tmp_path / name).version for name in ("one", "two", "none")]
    assert frozenset({"cpu"}) == read_cgroups(tmp_path / "two").given


@pytest.fixture
def barred_root() -> Iterator[Path]:
    """A node's root where kubelet's, the agent's and k3s's folders are another's alone, as root's are to most."""
    root = Path(tempfile.mkdtemp(prefix="aq-"))
    root.chmod(0o755)
    for folder in ("lib/kubelet/device-plugins", "lib/aliquot", "lib/rancher/k3s/agent/etc/containerd"):
        (root / "var" / folder).mkdir(parents=True)
    (root / "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint").write_text("{}")
    write_checkpoint(root / "var/lib/aliquot/node-checkpoint.json", Content("node-1"))
    for folder in ("kubelet", "aliquot", "rancher"):
        (root / "var/lib" / folder).chmod(0o700)
        os.chown(root / "var/lib" / folder, 65534, 65534)
    yield root
    shutil.rmtree(root)


@pytest.mark.skipif(os.geteuid() != 0, reason="to give folders away needs root")
def test_who_is_not_root_is_told_to_be_and_accuses_nobody(barred_root: Path):
    """What may not be looked into is a note with that way out: no traceback, and no advice to drain the node."""
    plain = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    words = [sys.executable, "-m", "aliquot.cli", "doctor", "--node", "-o", "json", "--root", str(barred_root)]
    done = subprocess.run([*plain, *words], capture_output=True, text=True, check=False)

    assert "" == done.stderr
    told = {one["what"]: (one["state"], one["way_out"]) for one in json.loads(done.stdout)["findings"]}
    assert ("note", "run as root") == told["kubelet"]
    assert "note" == told["state"][0]
    assert not {"agent", "agent's checkpoint", "kubelet's checkpoint"} & set(told)


@rooms
def test_a_containers_own_cgroups_are_not_judged():
    """What a container sees below /sys/fs/cgroup is read-only and its own; that is no fault of the node."""
    words = [sys.executable, "-m", "aliquot.cli", "doctor", "--node", "-o", "json"]
    done = subprocess.run(["unshare", "--cgroup", *words], capture_output=True, text=True, check=False)

    told = [finding for finding in json.loads(done.stdout)["findings"] if finding["what"] == "cgroups"]
    assert [("note", "only those of a container are visible from here")] == [
        (one["state"], one["found"]) for one in told
    ]


def test_an_arbiter_that_died_is_told(made: Node):
    """Its sockets are still there; the last test of the file, since it is not started again."""
    made.arbiter.kill()

    status, (fault, *_) = doctor(made)

    assert (1, "arbiter", True) == (status, fault["what"], "does not answer" in fault["found"])


def test_what_the_kernel_lacks_is_read_of_a_real_drivers_root(tmp_path: Path):
    """Device nodes that are missing below the driver's root are named as the node names them."""
    libraries = tmp_path / "usr/lib64"
    libraries.mkdir(parents=True)
    for part in (EMULATED_CUDA, EMULATED_NVML):
        name = Path(part).name.removesuffix("1")
        shutil.copy(native_part(part), libraries / f"{name}610.43.02")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()

    host = read_host(NodeSettings(driver_root=str(tmp_path)))

    assert host.kernel is not None
    assert ("610.43.02", (f"{tmp_path}/dev/nvidia-uvm",)) == (host.kernel.made_for, host.kernel.missing)
    assert "" == host.hook.trouble


def test_the_hook_is_compared_with_the_one_that_containers_are_shown(tmp_path: Path):
    """A volume that an agent made with this hook is current, one with another file in its place is not."""
    settings = NodeSettings(runtime_dir=str(tmp_path / "run"), state_dir=str(tmp_path / "state"), emulate="v100")
    (tmp_path / "run").mkdir()
    assert "" == read_host(settings).hook.shown
    _, driver = open_driver(settings)

    made = read_host(settings).hook
    assert (driver.current.name, True) == (made.shown, made.current)

    shown = driver.current.shared / "lib64/libcuda.so.1"
    shown.unlink()
    shown.write_bytes(b"another")
    assert not read_host(settings).hook.current
