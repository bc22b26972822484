"""The settings of one node's agent: one name for each, the same on the command line and in a file."""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from aliquot.kube.dialects.aliyun import UNIT_MIB, Unit
from aliquot.kube.manifest import BadYaml, read_yaml_file
from aliquot.kube.names import GROUP
from aliquot.model.errors import UserError
from aliquot.model.validation import sentence
from aliquot.node.volume.names import wanted
from aliquot.tokens import Turns
from aliquot.tracing.spans import ENDPOINT, is_endpoint

MOST_IDS: Final = 1000
GPUS: Final = ("own", "coexist")
METRIC_ALIASES: Final = ("gpu-manager", "hami", "hami-legacy")


_NAME: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY: Final = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}")
_VALUE: Final = re.compile(rf"({_NAME})?")


class BadSettings(UserError):
    """A configuration file or a flag that cannot be used."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """Every setting with its default; times are seconds, and a directory is the node's own, as kubelet sees it."""

    node_name: str = ""
    kubeconfig: str = ""
    emulate: str = ""
    driver_root: str = "/"
    extra_libraries: str = ""
    extra_devices: str = ""
    host_root: str = "/"
    gpus: str = "own"
    only_gpus: str = ""
    not_gpus: str = ""
    aliyun_unit: str = "GiB"
    gpushare_inspect: bool = False
    holder_namespace: str = "kube-system"
    turns: str = Turns.FLUID.value
    runtime_dir: str = "/run/aliquot"
    state_dir: str = "/var/lib/aliquot"
    cdi_dir: str = "/run/cdi"
    kubelet_dir: str = "/var/lib/kubelet"
    ids_per_gpu: int = 100
    node_labels: bool = True
    labels: str = ""
    health_period_s: float = 5.0
    allocation_check_period_s: float = 30.0
    pre_start_wait_s: float = 20.0
    replace_pods: bool = True
    audit_grace_s: float = 10.0
    audit_kill: bool = False
    display_address: str = "127.0.0.1"
    display_port: int = 5678
    metric_aliases: str = ""
    log_format: str = "text"
    otlp_endpoint: str = ""

    @property
    def name(self) -> str:
        """The node this agent speaks for."""
        return self.node_name or socket.gethostname().lower()

    @property
    def unit(self) -> Unit:
        """The unit of aliyun.com/gpu-mem."""
        return "MiB" if self.aliyun_unit == "MiB" else "GiB"

    @property
    def device_plugins(self) -> Path:
        """Where kubelet and its plugins meet."""
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
        """The driver's files as containers are shown them; outlives a reboot, as containers' records name it."""
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
        return tuple(part.strip() for part in self.metric_aliases.split(",") if part.strip())

    @property
    def own_labels(self) -> Mapping[str, str]:
        """The administrator's labels for the node; raises BadSettings for an invalid label."""
        return dict(_label(word) for word in _words(self.labels))

    def checked(self) -> Settings:
        """The settings themselves, if they make sense.

        Raises:
            BadSettings: one of them is invalid.
        """
        if self.gpus not in GPUS:
            raise BadSettings(f"gpus {self.gpus!r} is not known; take {' or '.join(GPUS)}")
        if self.turns not in [known.value for known in Turns]:
            raise BadSettings(f"turns {self.turns!r} is not known; take {', '.join(known.value for known in Turns)}")
        if self.aliyun_unit not in UNIT_MIB:
            raise BadSettings(f"aliyun-unit {self.aliyun_unit!r} is not known; take {' or '.join(UNIT_MIB)}")
        if not 1 <= self.ids_per_gpu <= MOST_IDS:
            raise BadSettings(f"ids-per-gpu {self.ids_per_gpu} is not between 1 and {MOST_IDS}")
        for name in ("health_period_s", "allocation_check_period_s", "pre_start_wait_s", "audit_grace_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadSettings(f"{name.replace('_', '-')} {getattr(self, name):g} is not a finite number above 0")
        if self.pre_start_wait_s >= 30:
            raise BadSettings(
                f"pre-start-wait-s {self.pre_start_wait_s:g} is too long: kubelet waits for 30 in all; take 25 or less"
            )
        if not 0 <= self.display_port <= 65535:
            raise BadSettings(f"display-port {self.display_port} is not between 0 (none) and 65535")
        for alias in self.aliases:
            if alias not in METRIC_ALIASES:
                raise BadSettings(f"metric-aliases {alias!r} is not known; take {', '.join(METRIC_ALIASES)}")
        _ = self.own_labels, wanted(self.extra_libraries)
        for path in _words(self.extra_devices):
            if not path.startswith("/dev/"):
                raise BadSettings(f"extra-devices {path!r} is not a device; write paths below /dev: /dev/infiniband/*")
        if self.otlp_endpoint and not is_endpoint(self.otlp_endpoint):
            raise BadSettings(f"otlp-endpoint {self.otlp_endpoint!r} is not an OTLP/HTTP receiver; write {ENDPOINT}")
        if self.log_format not in ("text", "json"):
            raise BadSettings(f"log-format {self.log_format!r} is not known; take text or json")
        return self


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _label(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    prefix, slash, _ = key.rpartition("/")
    if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
        raise BadSettings(f"labels {word!r} is not a label; write KEY=VALUE as Kubernetes accepts it, as team=vision")
    if slash and prefix.endswith(("kubernetes.io", "k8s.io", GROUP)):
        raise BadSettings(f"labels {word!r}: labels of {prefix} are not yours to give; take a prefix of your own")
    return key, value


def read_settings(file: Path | None, flags: dict[str, Any]) -> Settings:
    """The settings of a file (YAML, names as in `Settings`), overridden by the given flags.

    Raises:
        BadSettings: the file cannot be read, or names an unknown setting.
    """
    given: dict[str, Any] = {}
    if file is not None:
        try:
            given = read_yaml_file(file) or {}
        except BadYaml as error:
            raise BadSettings(f"--config {error}") from None
        if not isinstance(given, dict):
            raise BadSettings(f"--config {file}: it is not a mapping of settings to values")
    given |= {name.replace("_", "-"): value for name, value in flags.items() if value is not None}
    try:
        return msgspec.convert(given, Settings).checked()
    except msgspec.ValidationError as error:
        where = f"--config {file}: " if file is not None else ""
        raise BadSettings(f"{where}{sentence(error, given, Settings, called='an agent')}") from None


def print_settings(settings: Settings) -> str:
    """The settings as a configuration file that would give the same."""
    return yaml.safe_dump(msgspec.to_builtins(settings), sort_keys=False)
