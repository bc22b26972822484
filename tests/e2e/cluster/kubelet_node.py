"""A real node in the cluster's namespaces: containerd, runc, a CNI bridge and kubelet."""

import json
from pathlib import Path
from typing import Any

import yaml

from . import images
from .control_plane import ControlPlane
from .namespaces import NODE_ADDRESS
from .parts import Part, until

PODS = "10.123.0.0/24"
SOCKET = "/run/containerd/containerd.sock"
KUBELET_PORT = 10250
HEALTH_PORT = 10248


class KubeletNode:
    """The node `name`; its parts `containerd` and `kubelet` are among the control plane's.

    Inside the namespaces everything is where a machine has it (/var/lib/kubelet, /run/containerd, /run/cdi, /var/log);
    `path` says where that is outside.
    """

    def __init__(self, control_plane: ControlPlane, name: str = "node-1") -> None:
        self.name = name
        self.control_plane = control_plane
        self._rooms = control_plane.rooms
        self._programs = control_plane.programs

    def start(self) -> None:
        """From nothing to a Ready node with the images of `images`.

        Raises:
            RuntimeError: a part did not start; the text has the end of its log.
        """
        self._write_configuration()
        parts = self.control_plane.parts
        parts["containerd"] = Part(
            "containerd", self._rooms, self._containerd, self._containerd_ready, environment=self._environment()
        )
        parts["kubelet"] = Part(
            "kubelet",
            self._rooms,
            self._kubelet,
            lambda: self.control_plane.answers(HEALTH_PORT, "/healthz"),
            environment=self._environment(),
        )
        self.start_parts()

    def start_parts(self) -> None:
        """Starts containerd and kubelet, after `start` or a reboot, and waits until the node is Ready."""
        parts = self.control_plane.parts
        parts["containerd"].start()
        for archive in images.archives(Path(self._programs.program("busybox"))):
            self.import_image(archive)
        parts["kubelet"].start()
        until(lambda: self.name in self.control_plane.ready_nodes(), f"node {self.name} Ready")

    def stop(self) -> None:
        """Ends kubelet, every container and containerd, and forgets the node."""
        parts = self.control_plane.parts
        parts.pop("kubelet").stop()
        for container in self.ctr("tasks", "list", "--quiet").split():
            self.ctr("tasks", "kill", "--all", "--signal", "KILL", container, check=False)
        until(lambda: "RUNNING" not in self.ctr("tasks", "list"), "the end of all containers")
        parts.pop("containerd").stop()
        self.control_plane.api.delete(f"/api/v1/nodes/{self.name}")

    def path(self, inside: str | Path) -> Path:
        """Where a path of the node below /var/lib, /var/log or /run is for programs outside."""
        return self._rooms.state / str(inside).lstrip("/")

    def ctr(self, *arguments: str, check: bool = True) -> str:
        """Runs containerd's own client in kubelet's containerd namespace.

        Raises:
            RuntimeError: it failed and `check` is set.
        """
        try:
            return self._rooms.run([self._programs.program("ctr"), "-a", SOCKET, "-n", "k8s.io", *arguments])
        except RuntimeError:
            if check:
                raise
            return ""

    def import_image(self, archive: Path) -> None:
        """Makes an image archive (OCI or docker) known to the node."""
        self.ctr("images", "import", str(archive))

    def images(self) -> list[str]:
        """Names of the images that pods can name; nothing is ever pulled."""
        names = self.ctr("images", "list", "--quiet").split()
        return sorted(name for name in names if not name.startswith("sha256:") and name != images.PAUSE)

    def container_spec(self, namespace: str, pod: str, container: str) -> dict[str, Any]:
        """The runtime's own specification of a running container.

        Raises:
            LookupError: no such container.
        """
        made = self.control_plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")
        for status in made["status"].get("containerStatuses", ()):
            if status["name"] == container and status.get("containerID"):
                number = status["containerID"].removeprefix("containerd://")
                return json.loads(self.ctr("containers", "info", "--spec", number))
        raise LookupError(f"{namespace}/{pod} has no container {container} with an id")

    # -- how it is made ----------------------------------------------------------------------------------------

    def _environment(self) -> dict[str, str]:
        unpacked = self._programs.unpacked
        return {"PATH": f"{unpacked}/usr/bin:{unpacked}/usr/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/var/lib"}

    def _containerd_ready(self) -> bool:
        return bool(self.ctr("version", check=False))

    def _containerd(self) -> list[str]:
        return [self._programs.program("containerd"), "-c", str(self._rooms.state / "containerd.toml")]

    def _kubelet(self) -> list[str]:
        return [
            self._programs.program("kubelet"),
            f"--config={self._rooms.state}/kubelet.yaml",
            f"--kubeconfig={self._kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={NODE_ADDRESS}",
            "--root-dir=/var/lib/kubelet",
            "-v=2",
        ]

    def _write_configuration(self) -> None:
        state = self._rooms.state
        pki = self.control_plane.pki
        user = f"system:node:{self.name}"
        names = [NODE_ADDRESS, "127.0.0.1", self.name]
        pair = pki.server(f"kubelet-{self.name}", user, names, organization="system:nodes")
        self._kubeconfig = self.control_plane.user(user, "system:nodes")
        (state / "cni").mkdir(exist_ok=True)
        (state / "cni/10-pods.conflist").write_text(json.dumps(_network(), indent=1))
        (state / "containerd.toml").write_text(self._containerd_configuration())
        settings = self._kubelet_configuration()
        settings |= {"tlsCertFile": str(pair.certificate), "tlsPrivateKeyFile": str(pair.key)}
        (state / "kubelet.yaml").write_text(yaml.safe_dump(settings))

    def _containerd_configuration(self) -> str:
        unpacked = self._programs.unpacked
        return f"""version = 3
root = '/var/lib/containerd'
state = '/run/containerd'
[grpc]
  address = '{SOCKET}'
[plugins.'io.containerd.internal.v1.opt']
  path = '/var/lib/containerd/opt'
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '{images.PAUSE}'
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  # Without CAP_SYS_RESOURCE a lower score than one's own is refused, and with it the container.
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ['/run/cdi']
  enable_unprivileged_ports = false
  enable_unprivileged_icmp = false
  netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = '{self._programs.program("runc")}'
  SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['{unpacked}/usr/lib/cni']
  conf_dir = '{self._rooms.state}/cni'
"""

    def _kubelet_configuration(self) -> dict[str, Any]:
        signals = ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available")
        nothing = dict.fromkeys(signals, "0%")
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._rooms.cgroup}",
            "failCgroupV1": False,
            "oomScoreAdj": 0,
            "maxOpenFiles": 20000,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "localStorageCapacityIsolation": False,
            "enforceNodeAllocatable": ["pods"],
            "evictionHard": nothing,
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "1s",
            "resolvConf": "",
            "address": NODE_ADDRESS,
            "port": KUBELET_PORT,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": HEALTH_PORT,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.control_plane.authority)},
            },
            "authorization": {"mode": "Webhook"},
        }


def _network() -> dict[str, Any]:
    """A bridge for the pods; they reach the node and each other, and nothing else is there to be reached."""
    addresses = {"type": "host-local", "dataDir": "/var/lib/cni/addresses", "ranges": [[{"subnet": PODS}]]}
    bridge = {"type": "bridge", "bridge": "pods", "isDefaultGateway": True, "ipMasq": False, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
