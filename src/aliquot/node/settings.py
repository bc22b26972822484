"""The settings of one node's agent: one name for each, the same on the command line and in a file."""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from aliquot.driver.volume.names import wanted
from aliquot.kube.names import GROUP
from aliquot.kube.settings import BadSettings, ProgramSettings, fixed_sizes, flag, read_settings
from aliquot.tokens import Turns

MAX_IDS: Final = 1000
METRIC_ALIASES: Final = ("gpu-manager", "hami", "hami-legacy")


_NAME: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY: Final = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}")
_VALUE: Final = re.compile(rf"({_NAME})?")


class NodeSettings(ProgramSettings, frozen=True, kw_only=True):
    """Every setting with its default; times are seconds, and a directory is the node's own, as kubelet sees it."""

    node_name: Annotated[str, flag("The node to speak for. [default: the host's name]", "NAME")] = ""
    emulate: Annotated[str, flag("Use N emulated GPUs (t4, v100, a100, a100-80g, h100, h200).")] = ""
    driver_root: Annotated[str, flag("Below which the NVIDIA driver lies.", "DIR")] = "/"
    extra_libraries: Annotated[
        str, flag("Further driver libraries for containers: graphics, or names as libnvidia-fbc.so.", "NAMES")
    ] = ""
    extra_devices: Annotated[str, flag("Further devices for every container, as /dev/infiniband/*.", "PATHS")] = ""
    host_root: Annotated[str, flag("Where the node's root is mounted, for those devices.", "DIR")] = "/"
    gpus: Annotated[
        Literal["own", "coexist"],
        flag("Owner of the GPUs: this agent, or a stock plugin from which holder pods take some."),
    ] = "own"
    only_gpus: Annotated[
        str, flag("Share only these GPUs: indices, UUIDs or models, with commas between them. [default: all]")
    ] = ""
    not_gpus: Annotated[str, flag("Leave these GPUs alone; named in the same way.")] = ""
    gpushare_inspect: Annotated[
        bool, flag("Offer aliyun.com/gpu-mem and gpu-count, which kubectl inspect gpushare reads.")
    ] = False
    vcuda_resources: Annotated[
        bool,
        flag("Offer tencent.com/vcuda-core and vcuda-memory, as gpu-manager's nodes do."),
    ] = False
    claims: Annotated[bool, flag("Also serve ResourceClaims of class gpu-share.aliquot.dev (Kubernetes 1.36).")] = False
    claim_sizes: Annotated[
        str, flag("Shares of fixed sizes to publish for them as well, by count.", "NAME=HUNDREDTHS/MEMORY,...")
    ] = ""
    holder_namespace: Annotated[str, flag("Where holder pods are (coexist).", "NAME")] = "kube-system"
    turns: Annotated[Turns, flag("Turn policy; must match the arbiter's.")] = Turns.FLUID
    runtime_dir: Annotated[str, flag("Tenants, and the arbiter's sockets.", "DIR")] = "/run/aliquot"
    state_dir: Annotated[str, flag("The checkpoint.", "DIR")] = "/var/lib/aliquot"
    cdi_dir: Annotated[str, flag("Where the runtime reads CDI files.", "DIR")] = "/run/cdi"
    kubelet_dir: Annotated[str, flag("Kubelet's root folder.", "DIR")] = "/var/lib/kubelet"
    ids_per_gpu: Annotated[int, flag("Device ids of each GPU.", "N", ge=1, le=MAX_IDS)] = 100
    node_labels: Annotated[bool, flag("Whether to label the node by its GPUs.")] = True
    labels: Annotated[str, flag("Further labels of your own for the node.", "KEY=VALUE,...")] = ""
    health_period_s: Annotated[float, flag("Period of all checks.", "S")] = 5.0
    allocation_check_period_s: Annotated[float, flag("Between two checks.", "S")] = 30.0
    pre_start_wait_s: Annotated[float, flag("How long a start may be waited for.", "S")] = 20.0
    replace_pods: Annotated[
        bool, flag("Whether pods that cannot be served are deleted where a controller recreates them.")
    ] = True
    audit_grace_s: Annotated[
        float, flag("How long a program may use a shared GPU unregistered before it is reported.", "S")
    ] = 10.0
    audit_kill: Annotated[bool, flag("Whether such programs are killed where a pod runs them.")] = False
    display_address: Annotated[str, flag("Where pages and metrics are served.", "IP")] = "127.0.0.1"
    display_port: Annotated[int, flag("The port for it; 0 serves none.", "N", ge=0, le=65535)] = 5678
    metric_aliases: Annotated[str, flag("Also publish as gpu-manager, hami, hami-legacy.", "NAMES")] = ""

    @property
    def name(self) -> str:
        """The name of this agent's node."""
        return self.node_name or socket.gethostname().lower()

    @property
    def device_plugins(self) -> Path:
        """The folder of kubelet's and its device plugins' sockets."""
        return Path(self.kubelet_dir) / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        """The socket on which kubelet reports device allocations."""
        return Path(self.kubelet_dir) / "pod-resources" / "kubelet.sock"

    @property
    def checkpoint(self) -> Path:
        """The agent's checkpoint and driver volume; survives a reboot."""
        return Path(self.state_dir) / "node-checkpoint.json"

    @property
    def driver_volume(self) -> Path:
        """The driver's files as containers see them; survives a reboot, because containers' records name it."""
        return Path(self.state_dir) / "driver"

    @property
    def emulated(self) -> Path:
        """The emulated machine, if any."""
        return Path(self.runtime_dir) / "emulated"

    @property
    def tenants(self) -> Path:
        """One folder for each tenant."""
        return Path(self.runtime_dir) / "tenants"

    @property
    def aliases(self) -> tuple[str, ...]:
        """The other projects under whose names metrics are published too."""
        return tuple(_words(self.metric_aliases))

    @property
    def own_labels(self) -> Mapping[str, str]:
        """The administrator's labels for the node; raises BadSettings for an invalid label."""
        labels = {}
        for word in _words(self.labels):
            key, equals, value = word.partition("=")
            prefix, slash, _ = key.rpartition("/")
            if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
                raise BadSettings(
                    f"labels {word!r} is not a label; write KEY=VALUE as Kubernetes accepts it, as team=vision"
                )
            if slash and prefix.endswith(("kubernetes.io", "k8s.io", GROUP)):
                raise BadSettings(
                    f"labels {word!r}: labels of {prefix} are not yours to give; take a prefix of your own"
                )
            labels[key] = value
        return labels

    def check(self) -> None:
        """As in `ProgramSettings`."""
        super().check()
        fixed_sizes(self.claim_sizes)
        for name in ("health_period_s", "allocation_check_period_s", "pre_start_wait_s", "audit_grace_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadSettings(f"{name.replace('_', '-')} {getattr(self, name):g} is not a finite number above 0")
        if self.pre_start_wait_s >= 30:
            raise BadSettings(
                f"pre-start-wait-s {self.pre_start_wait_s:g} is too long: kubelet waits for 30 in all; take 25 or less"
            )
        for alias in self.aliases:
            if alias not in METRIC_ALIASES:
                raise BadSettings(f"metric-aliases {alias!r} is not known; take {', '.join(METRIC_ALIASES)}")
        _ = self.own_labels, wanted(self.extra_libraries)
        for path in _words(self.extra_devices):
            if not path.startswith("/dev/"):
                raise BadSettings(f"extra-devices {path!r} is not a device; write paths below /dev: /dev/infiniband/*")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def node_settings(file: Path | None, flags: dict[str, Any] | None = None) -> NodeSettings:
    """The settings of a file, overridden by the given flags.

    Raises:
        BadSettings: as `read_settings`.
    """
    return read_settings(NodeSettings, file, flags or {}, called="an agent")
