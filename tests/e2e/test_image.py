"""The image that the Dockerfile makes, and the chart run from it: real containers of a real containerd."""

import http.client
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from charting import CHART, run
from cluster import builder
from cluster.cache import Unavailable
from cluster.control_plane import ControlPlane
from cluster.images import PYTHON
from cluster.kubelet_node import KubeletNode
from cluster.parts import until
from cluster.prepare import Parts
from scheduling import PLAN, PORT, PROFILE, ROOT, Pods, percent, slices_of

from aliquot.arbiter.client import ArbiterClient, ArbiterError
from aliquot.kube.names import GPU_PERCENT
from aliquot.scheduler.settings import kube_scheduler_config
from aliquot.status.tenants import TenantStatus

sys.path.append(str(ROOT / "tools"))
from image import configuration, layers_mib, reference

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
HOME = "aliquot-image"
PROBE = ROOT / "tests" / "e2e" / "node"
DISPLAY = 5678
MAX_MIB = 150
"""What the image may weigh beyond its base."""

HERE = "node.emulate=v100x2,node.runtimeClassName=,webhook.enabled=false,kubeScheduler.enabled=false"
"""The test cluster has no RuntimeClass, no image of kube-scheduler, and carries nobody's questions to a Service."""


@pytest.fixture(scope="module")
def archive(cluster_parts: Parts) -> Path:
    """The image, built from the Dockerfile unless nothing has changed since."""
    try:
        return builder.image()
    except Unavailable as error:
        pytest.fail(f"the image cannot be built: {error}")


def test_the_image_runs_as_nobody_and_is_small(archive: Path):
    """Without being told otherwise it runs `aliquot` as a user without rights, and adds little to its base."""
    made = configuration(archive)
    base, *ours = layers_mib(archive)
    print(f"base {base:.0f} MiB, ours {sum(ours):.0f} MiB")

    assert ("65532:65532", ["aliquot"]) == (made["config"]["User"], made["config"]["Entrypoint"])
    assert "Apache-2.0" == made["config"]["Labels"]["org.opencontainers.image.licenses"]
    assert sum(ours) <= MAX_MIB


class Installation:
    """The chart on the real node, everything in containers of the image."""

    def __init__(self, helm: str, node: KubeletNode, archive: Path) -> None:
        self.helm, self.node, self.plane = helm, node, node.control_plane
        repository, _, tag = reference(archive).rpartition(":")
        self._values = f"image.repository={repository},image.tag={tag},{HERE}"

    def put(self, verb: str, *values: str) -> None:
        """Install or upgrade, and wait until all of it is ready."""
        flags = ("--namespace", HOME, "--wait", "--timeout", "300s", "--set", ",".join((self._values, *values)))
        run(self.helm, verb, "aliquot", str(CHART), *flags, plane=self.plane)

    def pod_of(self, component: str) -> dict[str, Any]:
        """The one pod of a component that is not on its way out."""
        (found,) = (
            pod
            for pod in Pods(self.plane, HOME).staying()
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] == component
        )
        return found

    def spec(self, component: str, container: str) -> dict[str, Any]:
        """What the runtime was told of a container."""
        return self.node.container_spec(HOME, self.pod_of(component)["metadata"]["name"], container)

    def allocatable(self) -> str:
        """Hundredths of GPUs that the node offers."""
        status = self.plane.api.get(f"/api/v1/nodes/{self.node.name}")["status"]
        return str(status["allocatable"].get(GPU_PERCENT, ""))

    def schedule(self) -> None:
        """Let the stock scheduler ask the one in the container."""
        address = self.pod_of("scheduler")["status"]["podIP"]
        self.plane.schedule_with(kube_scheduler_config(f"http://{address}:{PORT}"))

    def tenants(self) -> dict[str, TenantStatus]:
        """The arbiter's tenants by name."""
        try:
            with ArbiterClient(self.node.path("/run/aliquot")) as client:
                return {tenant.name: tenant for gpu in client.status().gpus for tenant in gpu.tenants}
        except ArbiterError as error:
            raise OSError(str(error)) from None


@pytest.fixture(scope="module")
def installed(archive: Path, helm: str, kubelet_node: KubeletNode) -> Iterator[Installation]:
    """Installed with helm, from an image that containerd has taken."""
    plane = kubelet_node.control_plane
    kubelet_node.import_image(archive)
    plane.kubectl("label", "node", kubelet_node.name, "nvidia.com/gpu.present=true")
    plane.make_namespace(HOME)
    made = Installation(helm, kubelet_node, archive)
    made.put("install")
    until(lambda: made.allocatable() == "200", "the GPUs of the node", 120)
    made.schedule()
    yield made
    plane.schedule_with({})


def glance(plane: ControlPlane, namespace: str, name: str) -> dict[str, Any]:
    """Makes a pod of 0.3 that tells what its driver shows, and waits for what it tells."""
    container = {
        "name": "main", "image": PYTHON, "imagePullPolicy": "Never", "command": ["python3", "/probe/glance.py"],
        "resources": {"limits": percent(30, "4Gi")},
        "volumeMounts": [{"name": "probe", "mountPath": "/probe", "readOnly": True}],
    }  # fmt: skip
    spec = {
        "schedulerName": PROFILE, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "containers": [container], "volumes": [{"name": "probe", "hostPath": {"path": str(PROBE)}}],
    }  # fmt: skip
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": name}, "spec": spec})

    def look() -> dict[str, Any] | None:
        line = plane.kubectl("logs", "-n", namespace, name, check=False).partition("\n")
        return json.loads(line[0]) if line[1] else None

    return until(look, f"what {name} tells", 120)


def test_a_pod_gets_its_share(installed: Installation, namespace: str):
    """Scheduler, agent and arbiter, each in its container, give a pod the GPU and the memory of its plan."""
    told = glance(installed.plane, namespace, "user")
    pod = installed.plane.pod(namespace, "user")
    ((uuid, milli, mib),) = slices_of(pod)

    assert (300, 4096) == (milli, mib)
    assert {"uuids": [uuid], "total_mib": 4096, "statuses": [0] * 5, "tenant": f"{namespace}/user/main"} == told
    assert 300 == installed.tenants()[f"{namespace}/user/main"].request_milli


def test_the_node_is_audited(installed: Installation, namespace: str):
    """Without any capability, agent and arbiter see the node's process numbers, so NVML can be compared with them."""
    glance(installed.plane, namespace, "audited")
    address = installed.pod_of("node")["status"]["podIP"]

    def audited() -> bool:
        connection = http.client.HTTPConnection(address, DISPLAY)
        connection.sock = installed.plane.rooms.connect(DISPLAY, address)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return any(line.startswith("aliquot_node_audited{") and line.endswith(" 1.0") for line in lines)

    until(audited, "the comparison", 60)


def test_an_upgrade_leaves_pods_their_share(installed: Installation, namespace: str):
    """New containers of agent and arbiter find the pods of the old ones; the pods notice nothing."""
    glance(installed.plane, namespace, "stays")
    before, agent = installed.plane.pod(namespace, "stays"), installed.pod_of("node")["metadata"]["uid"]

    installed.put("upgrade", "node.metricAliases=hami")
    until(lambda: installed.pod_of("node")["metadata"]["uid"] != agent, "a new agent", 120)
    until(lambda: installed.allocatable() == "200", "the GPUs of the node", 120)
    until(lambda: f"{namespace}/stays/main" in installed.tenants(), "the pod among the tenants", 120)
    after = installed.plane.pod(namespace, "stays")

    assert before["metadata"]["annotations"][PLAN] == after["metadata"]["annotations"][PLAN]
    assert [("Running", 0)] == [
        (after["status"]["phase"], status["restartCount"]) for status in after["status"]["containerStatuses"]
    ]


@pytest.mark.parametrize(
    ("component", "container", "rights"),
    [("node", "node", []), ("node", "arbiter", ["CAP_KILL", "CAP_SYS_NICE"]), ("scheduler", "scheduler", [])],
)
def test_containers_have_the_rights_that_are_written_down(
    installed: Installation, component: str, container: str, rights: list[str]
):
    """The runtime was told: no capability but those named, no way to more, a root that cannot be written."""
    spec = installed.spec(component, container)
    process = spec["process"]

    assert rights == sorted(process["capabilities"].get("bounding", []))
    assert (True, True) == (process["noNewPrivileges"], spec["root"]["readonly"])
    assert "seccomp" in spec["linux"]
    assert (0 if component == "node" else 65532) == process["user"]["uid"]


@pytest.mark.parametrize(
    ("container", "folders"),
    [
        (
            "node",
            {
                "/var/lib/kubelet/device-plugins": "rw",
                "/var/lib/kubelet/pod-resources": "ro",
                "/run/cdi": "rw",
                "/run/aliquot": "rw",
                "/var/lib/aliquot": "rw",
            },
        ),
        ("arbiter", {"/run/aliquot": "rw"}),
    ],
)
def test_containers_see_of_the_node_what_is_written_down(
    installed: Installation, container: str, folders: dict[str, str]
):
    """Of the node's folders each container has those of the chart and no other; the arbiter has no API token."""
    mounts = installed.spec("node", container)["mounts"]
    given = {m["destination"]: "ro" if "ro" in m["options"] else "rw" for m in mounts if m["type"] == "bind"}
    of_kubelet = {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/termination-log", "/dev/shm", "/tmp"}
    token = "/var/run/secrets/kubernetes.io/serviceaccount"

    assert ("node" == container) == (token in given)
    assert folders == {path: how for path, how in given.items() if path not in of_kubelet | {token}}


def test_an_uninstall_takes_the_gpus_back_and_leaves_the_pods(installed: Installation, namespace: str):
    """Without Aliquot the node offers no share any more, and who has one runs on."""
    glance(installed.plane, namespace, "last")
    run(installed.helm, "uninstall", "aliquot", "--namespace", HOME, "--wait", plane=installed.plane)

    until(lambda: installed.allocatable() in ("", "0"), "no share to be had", 120)
    assert "Running" == installed.plane.pod(namespace, "last")["status"]["phase"]
