"""Each fault of a node is named with what mends it, and a sound node has none."""

from dataclasses import replace

import pytest

from aliquot.model.findings import Finding
from aliquot.node.doctor.checks import OURS, Arbiter, Cgroups, Folders, Hook, Host, KernelSide, Kubelet, examine
from aliquot.node.doctor.runtime import Runtime

CONTAINERD = Runtime("containerd", "/etc/containerd/config.toml", True)
KUBELET = Kubelet(plugins={OURS: "answers"}, offered={"aliquot.dev/gpu-percent": 200})
SOUND = Host(
    kubelet=KUBELET, arbiter=Arbiter(tenants=3, compared=True), driver="/usr/lib/libcuda.so.570 (version 570)",
    kernel=KernelSide(version="570.1", made_for="570.1"), hook=Hook(shown="570.1-ab"),
)  # fmt: skip
STOCK = {OURS: "answers", "nvidia-gpu.sock": "answers"}
OFFERS = {"aliquot.dev/gpu-percent": 200, "nvidia.com/gpu": 2}


def faults(**changes: object) -> list[Finding]:
    """What is wrong with a sound node after `changes`."""
    return [finding for finding in examine(replace(SOUND, **changes)) if finding.state == "fault"]  # type: ignore[arg-type]


def kubelet(**changes: object) -> Kubelet:
    """A sound kubelet but for `changes`."""
    return replace(KUBELET, **changes)  # type: ignore[arg-type]


def test_a_sound_node_has_nothing_to_mend():
    """Every line is well, and says what was seen."""
    told = examine(SOUND)

    assert {"ok"} == {finding.state for finding in told}
    assert {
        "driver", "kernel module", "device nodes", "hook",
        "container runtime", "kubelet", "agent", "arbiter", "folders", "cgroups", "protection",
    } == {finding.what for finding in told}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "what", "found", "way_out"),
    [
        ({"no_driver": "no NVIDIA driver below /"}, "driver", "no NVIDIA driver", "--driver-root"),
        (
            {"kernel": KernelSide(modules=frozenset({"nvidia"}))},
            "kernel module", "nvidia_uvm is not loaded: programs in containers fail", "nvidia-modprobe -u -c=0",
        ),
        ({"kernel": KernelSide(frozenset({"nvidia_uvm"}))}, "kernel module", "nvidia is not", "modprobe nvidia"),
        (
            {"kernel": KernelSide(version="615.1", made_for="610.2")},
            "kernel module", "615.1 and the libraries are 610.2", "boot the node",
        ),
        ({"kernel": KernelSide(missing=("/dev/nvidia3",))}, "device node", "/dev/nvidia3 is", "nvidia-modprobe -c=3"),
        ({"kernel": KernelSide(missing=("/dev/nvidia-uvm",))}, "device node", "nvidia-uvm is", "nvidia-modprobe -u"),
        ({"hook": Hook("libaliquot.so is not installed")}, "hook", "is not installed", "wheel"),
        ({"hook": Hook(shown="x", unhooked=("ns/a/main: 2 functions not intercepted",))}, "hook", "ns/a", "limit"),
        ({"runtime": replace(CONTAINERD, cdi=False)}, "container runtime", "has CDI off", "set enable_cdi = true in"),
        (
            {"runtime": replace(CONTAINERD, folders=("/etc/cdi",))},
            "container runtime", "reads CDI files in /etc/cdi, not in /run/cdi", "add /run/cdi to cdi_spec_dirs",
        ),
        ({"runtime": replace(CONTAINERD, folders=())}, "container runtime", "in no folder", "add /run/cdi"),
        (
            {"runtime": replace(CONTAINERD, serves_kubelet=False)},
            "container runtime", "CRI plugin is disabled", "take cri out of disabled_plugins",
        ),
        (
            {"runtime": replace(CONTAINERD, default="nvidia"), "open_to_all": "/etc/n/config.toml"},
            "NVIDIA's runtime", "has all GPUs without a share", "= false in /etc/n/config.toml",
        ),
        (
            {"runtime": replace(CONTAINERD, trouble="config.toml: line 3")},
            "container runtime", "cannot be read: config.toml: line 3", "restart containerd",
        ),
        ({"kubelet": kubelet(registration="missing")}, "kubelet", "kubelet.sock is missing", "systemctl"),
        ({"kubelet": kubelet(registration="refuses")}, "kubelet", "no process listens there", "--kubelet-dir"),
        ({"kubelet": kubelet(pod_resources="missing")}, "PodResources", "identify starting containers", "mounted"),
        ({"kubelet": kubelet(cdi=False)}, "kubelet", "DevicePluginCDIDevices is off", "featureGates"),
        ({"kubelet": kubelet(offered=None)}, "kubelet's checkpoint", "kubelet_internal_checkpoint", "remove the file"),
        ({"kubelet": kubelet(plugins=STOCK, offered=OFFERS)}, "stock plugin", "offers 2 nvidia.com/gpu", "coexist"),
        ({"kubelet": kubelet(plugins={OURS: "refuses"})}, "agent", "is left over", "restart the node's aliquot pod"),
        ({"kubelet": kubelet(plugins={})}, "agent", "no agent serves", "run aliquot node here"),
        ({"kubelet": kubelet(offered={})}, "agent", "kubelet offers no aliquot.dev/gpu-percent", "log says why"),
        ({"checkpoint": "/x is not a checkpoint"}, "agent's checkpoint", "/x is not a checkpoint", "sets it aside"),
        ({"arbiter": Arbiter("no arbiter: /run/x")}, "arbiter", "no arbiter", "restart the arbiter's container"),
        ({"arbiter": Arbiter(turns="gemini")}, "turns", "the agent's settings say fluid", "--turns fluid"),
        ({"folders": Folders(state="full")}, "state", "the disk of /var/lib/aliquot is full", "make room"),
        ({"folders": Folders(state="read-only")}, "state", "is mounted read-only", "remount,rw"),
        ({"folders": Folders(state="no folder")}, "state", "/var/lib/aliquot is not a folder", "move the file"),
        ({"folders": Folders(cdi="read-only")}, "CDI files", "/run/cdi is mounted read-only", "remount,rw"),
        ({"folders": Folders(runtime="full")}, "tenants", "/run/aliquot is full", "make room"),
        ({"folders": Folders(free_mib=3)}, "state", "has 3 MiB left", "make room"),
        ({"cgroups": Cgroups(0)}, "cgroups", "no cgroups", "mount cgroup2"),
        ({"cgroups": Cgroups(read_only=True)}, "cgroups", "mounted read-only", "remount,rw /sys/fs/cgroup"),
        ({"cgroups": Cgroups(known=frozenset({"cpu", "pids"}))}, "cgroups", "no controller memory", "cgroup_disable"),
        ({"cgroups": Cgroups(given=frozenset({"memory"}))}, "cgroups", "controller cpu, pids", "Delegate=yes"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "",
)  # fmt: skip
def test_each_fault_is_named_with_its_mend(changes: dict[str, object], what: str, found: str, way_out: str):
    """One fault, one line: what, where, and what to do."""
    (fault,) = faults(**changes)

    assert (what, True, True) == (fault.what, found in fault.found, way_out in fault.way_out)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"runtime": replace(CONTAINERD, cdi=None)}, "container runtime"),
        ({"cgroups": Cgroups(1)}, "cgroups"),
        ({"cgroups": Cgroups(2, read_only=True, whole=False)}, "cgroups"),
        ({"runtime": None}, "container runtime"),
        ({"folders": Folders(state="barred")}, "state"),
        ({"arbiter": Arbiter(compared=False)}, "protection"),
        ({"arbiter": Arbiter(compared=True, unregistered=2)}, "unregistered"),
        ({"folders": Folders(state="missing")}, "state"),
        ({"kubelet": kubelet(plugins={OURS: "answers", "other.sock": "refuses"})}, "stale socket"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_may_be_as_it_is_is_a_note(changes: dict[str, object], what: str):
    """It is told with a way out, and is no fault."""
    (note,) = [finding for finding in examine(replace(SOUND, **changes)) if finding.state != "ok"]  # type: ignore[arg-type]

    assert ("note", what, True) == (note.state, note.what, bool(note.way_out))


def test_a_node_without_kubelet_and_runtime_has_neither():
    """Where kubelet does not run either, it is no matter of what can be seen from here."""
    told = {fault.what: fault for fault in faults(runtime=None, kubelet=kubelet(registration="missing"))}

    assert {"container runtime", "kubelet"} == set(told)
    assert "containerRuntimeEndpoint" in told["container runtime"].way_out


def test_a_stock_plugin_beside_an_agent_that_shares_with_it_is_well():
    """The agent's settings say whose the GPUs are."""
    assert [] == faults(kubelet=kubelet(plugins=STOCK, offered=OFFERS), gpus="coexist")


def test_the_stock_plugins_left_over_ledger_are_not_in_the_way():
    """Kubelet keeps what a plugin offered once; without the plugin it gives none of it away."""
    assert [] == faults(kubelet=kubelet(offered=OFFERS))


def test_the_level_of_protection_is_told_by_what_runs():
    """Audited only while NVML is compared, cooperative else, and nothing more is claimed."""
    levels = [
        next(f.found.partition(":")[0] for f in examine(replace(SOUND, arbiter=arbiter)) if f.what == "protection")
        for arbiter in (Arbiter(compared=True), Arbiter(compared=False), Arbiter("no arbiter"))
    ]

    assert ["audited", "cooperative", "cooperative"] == levels


@pytest.mark.parametrize(
    ("hook", "found"),
    [
        (Hook(), "no container is shown it yet"),
        (Hook(shown="570.1-ab", current=False), "another one than is installed"),
    ],
)
def test_a_hook_that_containers_do_not_have_yet_is_noted(hook: Hook, found: str):
    """Before the agent's first start, and after an upgrade until its next one."""
    told = [finding for finding in examine(replace(SOUND, hook=hook)) if finding.what == "hook"]

    assert [("note", True)] == [(finding.state, found in finding.found) for finding in told]


def test_an_emulated_driver_has_no_kernel_side():
    """Nothing is said of modules and device nodes where there are none."""
    told = {finding.what for finding in examine(replace(SOUND, kernel=None))}

    assert not {"kernel module", "device nodes"} & told


def test_nvidias_runtime_is_no_fault_where_pods_have_to_name_it():
    """With another default runtime a pod needs the runtime class, which Pod Security of a namespace can refuse."""
    assert [] == faults(runtime=replace(CONTAINERD, default="runc"), open_to_all="/etc/n/config.toml")
    assert [] == faults(runtime=replace(CONTAINERD, default="nvidia"))
