"""The Helm chart: what it renders, and what an installation, an upgrade and an uninstall do to a real cluster."""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from charting import CHART, run
from cluster.control_plane import ControlPlane
from cluster.ours import configurations
from cluster.parts import Part
from scheduling import PLAN, PORT, ROOT, Pods, eventually, gpu_pod, percent

from aliquot.cli.programs import scheduler
from aliquot.kube.api import APPLY, MERGE, Api
from aliquot.kube.errors import KubeError
from aliquot.kube.sharepods import PROFILE
from aliquot.node.settings import node_settings
from aliquot.scheduler.settings import kube_scheduler_config
from aliquot.web.access import SECRET

HOME = "aliquot-chart"
POD_IP = "10.124.0.7"
"""The address that the scheduler's pod is said to have."""

DEVICES = "/apis/resource.k8s.io/v1"
EVERYTHING = (
    "--set=scheduler.gpus=coexist,scheduler.replicas=2,scheduler.tls.secretName=tls,node.emulate=v100x2,"
    "node.replacePods=false,scheduler.defaultGpuLimit=0.5,networkPolicy.extenderFrom[0].ipBlock.cidr=10.0.0.0/28,"
    "networkPolicy.nodeFrom[0].ipBlock.cidr=10.0.0.0/28,node.metricAliases=hami,node.privileged=true,"
    "claims.enabled=true,web.enabled=true,web.tls.secretName=web,web.hosts[0]=gpus.example,"
    "networkPolicy.webFrom[0].ipBlock.cidr=10.0.0.0/28"
)
"""Values other than the defaults, for every branch of the templates."""

ON_FAKE_NODES = "--set=node.runtimeClassName=,kubeScheduler.tag=v1.36.0"
"""There is no RuntimeClass; the fake nodes run any image."""


def rendered(helm: str, *flags: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Every object of the chart by kind and name."""
    text = run(helm, "template", "aliquot", str(CHART), "--namespace", HOME, *flags)
    return {(o["kind"], o["metadata"]["name"]): o for o in yaml.safe_load_all(text) if o}


def test_helm_lints_the_chart_strictly(helm: str):
    """With its defaults and with all else that it can do, helm finds nothing to say against it."""
    for flags in ((), (EVERYTHING,)):
        assert "0 chart(s) failed" in run(helm, "lint", "--strict", str(CHART), *flags)


def test_what_is_generated_is_fresh(helm: str):
    """The chart's files are what the code says, and the plain manifests are what helm makes of the chart."""
    command = [sys.executable, str(ROOT / "tools" / "gen_deploy.py"), "--check", "--helm", helm]
    done = subprocess.run(command, capture_output=True, text=True)

    assert 0 == done.returncode, done.stderr


def test_kube_scheduler_and_api_server_are_told_what_the_code_says(helm: str):
    """The rendered configurations are those of the programs, with this release's names."""
    found = rendered(helm)
    given = yaml.safe_load(found["ConfigMap", "aliquot-kube-scheduler"]["data"]["config.yaml"])
    lease = given.pop("leaderElection")
    wanted = kube_scheduler_config(f"http://aliquot-extender.{HOME}.svc:{PORT}")

    assert (HOME, "aliquot-kube-scheduler") == (lease["resourceNamespace"], lease["resourceName"])
    assert wanted | {"profiles": [p for p in wanted["profiles"] if p["schedulerName"] == PROFILE]} == given
    for hook in configurations(HOME):
        assert hook["webhooks"] == found[hook["kind"], hook["metadata"]["name"]]["webhooks"]


def test_every_branch_renders_objects_that_are_bounded(helm: str):
    """Whatever is chosen, every container is bounded, has its files read-only, and no right it was not given."""
    for flags in ((), (EVERYTHING,), ("--set=kubeScheduler.enabled=false,webhook.enabled=false,node.enabled=false",)):
        for (kind, name), body in rendered(helm, *flags).items():
            if kind not in ("Deployment", "DaemonSet"):
                continue
            for container in body["spec"]["template"]["spec"]["containers"]:
                assert {"cpu", "memory"} <= set(container["resources"]["requests"])
                assert "memory" in container["resources"]["limits"]
                security = container["securityContext"]
                assert security["readOnlyRootFilesystem"]
                privileged = flags == (EVERYTHING,) and name == "aliquot-node"
                assert privileged == security.get("privileged", False)
                if not privileged:
                    assert (False, ["ALL"]) == (security["allowPrivilegeEscalation"], security["capabilities"]["drop"])


def test_what_the_administrator_says_of_gpus_reaches_the_agent(helm: str):
    """Chosen and excluded GPUs, labels, further libraries and devices are flags that the agent knows."""
    said = {
        "onlyGpus": "0,A100", "notGpus": "GPU-1", "extraLibraries": "graphics", "extraDevices": "/dev/infiniband/*",
        "labels": {"team": "vision", "rack": "r1"},
    }  # fmt: skip
    found = rendered(helm, f"--set-json=node={json.dumps(said)}")
    spec = found["DaemonSet", "aliquot-node"]["spec"]["template"]["spec"]
    agent, arbiter = spec["containers"]

    flags = [argument for argument in agent["args"] if argument not in plain_arguments(helm)]
    assert {
        "--only-gpus=0,A100", "--not-gpus=GPU-1", "--extra-libraries=graphics", "--extra-devices=/dev/infiniband/*",
        "--host-root=/host", "--labels=rack=r1,team=vision",
    } == set(flags)  # fmt: skip
    given = dict(flag.removeprefix("--").replace("-", "_", 1).split("=", 1) for flag in flags)
    settings = node_settings(None, {name.replace("-", "_"): value for name, value in given.items()})
    assert ("0,A100", "/host", {"rack": "r1", "team": "vision"}) == (
        settings.only_gpus, settings.host_root, settings.own_labels,
    )  # fmt: skip
    assert {"name": "devices", "mountPath": "/host/dev", "readOnly": True} in agent["volumeMounts"]
    assert "devices" not in {mount["name"] for mount in arbiter["volumeMounts"]}


def test_agent_and_arbiter_are_told_the_same_turns(helm: str):
    """The chart's value for turns is a flag of both."""
    spec = rendered(helm, "--set=node.turns=gemini")["DaemonSet", "aliquot-node"]["spec"]["template"]["spec"]

    assert all("--turns=gemini" in container["args"] for container in spec["containers"])


def plain_arguments(helm: str) -> list[str]:
    """What the agent is told by default."""
    (agent, _) = rendered(helm)["DaemonSet", "aliquot-node"]["spec"]["template"]["spec"]["containers"]
    return list(agent["args"])


def test_every_replica_counts_and_the_leader_is_asked(helm: str):
    """With two replicas a rollout keeps both Ready, the extender's Service selects nobody, the other one everybody."""
    found = rendered(helm, "--set=scheduler.replicas=2")
    deployment = found["Deployment", "aliquot-scheduler"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]

    assert (2, {"maxSurge": 1, "maxUnavailable": 0}) == (
        deployment["replicas"],
        deployment["strategy"]["rollingUpdate"],
    )
    assert "selector" not in found["Service", "aliquot-extender"]["spec"]
    assert labels == found["Service", "aliquot-scheduler"]["spec"]["selector"]
    assert 1 == found["PodDisruptionBudget", "aliquot-scheduler"]["spec"]["maxUnavailable"]


def test_the_dashboard_is_there_when_it_is_asked_for(helm: str):
    """Without `web` nothing of it is there; with it a token is asked for, agents are reached, and flags are known."""
    plain, found = rendered(helm), rendered(helm, "--set=web.enabled=true")
    (container,) = found["Deployment", "aliquot-scheduler"]["spec"]["template"]["spec"]["containers"]
    flags = [flag for flag in container["args"] if flag.startswith("--web") and not flag.startswith("--webhook")]
    (allowed,) = found["NetworkPolicy", "aliquot-node"]["spec"]["ingress"]
    labels = found["Deployment", "aliquot-scheduler"]["spec"]["template"]["metadata"]["labels"]
    options = {name for option in scheduler.params for name in option.opts}

    assert ("Service", "aliquot-dashboard") not in plain and [] == plain["NetworkPolicy", "aliquot-node"]["spec"][
        "ingress"
    ]
    assert {"--web=0.0.0.0:8771", "--web-access=token", "--web-agent-port=5678"} <= set(flags)
    assert {flag.partition("=")[0] for flag in flags} <= options
    assert [{"podSelector": {"matchLabels": labels}}] == allowed["from"]
    assert labels == found["Service", "aliquot-dashboard"]["spec"]["selector"]
    assert all("web" not in str(rule["ports"]) or "webhook" in str(rule["ports"])
               for rule in found["NetworkPolicy", "aliquot-scheduler"]["spec"]["ingress"])  # fmt: skip


def test_replicas_share_the_key_of_sessions(helm: str):
    """Where people sign in the scheduler may make and read that one Secret, and nowhere else."""

    def rights(*values: str) -> list[tuple[list[str], list[str]]]:
        role = rendered(helm, f"--set={','.join(['webhook.enabled=false', *values])}")["Role", "aliquot-scheduler"]
        rules = [rule for rule in role["rules"] if "secrets" in rule["resources"]]
        return [(rule.get("resourceNames", []), rule["verbs"]) for rule in rules]

    assert [([], ["create"]), ([SECRET], ["get"])] == rights("web.enabled=true")
    assert [] == rights("web.enabled=true", "web.access=open") == rights("web.enabled=false")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("scheduler.gpuss=own", "additional properties 'gpuss' not allowed"),
        ("scheduler.gpus=mine", "value must be one of 'own', 'coexist'"),
        ("scheduler.replicas=many", "want integer"),
        ("scheduler.pool=foo:3", "does not match pattern '^(on-demand|"),
        ("scheduler.defaultGpuLimit=banana", "at '/scheduler/defaultGpuLimit': 'banana' does not match pattern"),
        ("image.pullPolicy=Sometimes", "value must be one of 'Always', 'IfNotPresent', 'Never'"),
        ("node.kubeletDir=kubelet", "'kubelet' does not match pattern '^/'"),
        ("web.prometheus=monitoring:9090", "at '/web/prometheus': 'monitoring:9090' does not match pattern"),
        ("web.port=70000", "at '/web/port': maximum: got 70,000, want 65,535"),
        ("node.emulate=h1000x2", "does not match pattern '^((a100"),
        ("node.emulate=h100x17", "does not match pattern '^((a100"),
        ("node.turns=fixed", "value must be one of 'fluid', 'kubeshare', 'gemini'"),
        ("scheduler.tls.secretName=a,scheduler.tls.clientCa=true", "has no certificate to show"),
        ("web.enabled=true,web.access=everybody", "value must be one of 'token', 'open'"),
        ("web.enabled=true,web.namespaces[0]=a", "web.namespaces is for web.access open"),
    ],
)
def test_values_that_are_written_wrong_are_refused(helm: str, value: str, sentence: str):
    """A value that does not exist, of the wrong type, or that contradicts another stops helm with its path."""
    assert sentence in run(helm, "template", "aliquot", str(CHART), "--set", value, status=1)


@pytest.fixture(scope="module")
def nodes(control_plane: ControlPlane) -> list[str]:
    """A node with four GPUs, and a namespace to install into."""
    made = control_plane.fake_nodes(1, "v100", gpus=4, prefix="chart")
    control_plane.kubectl("label", "node", *made, "kubernetes.io/os=linux", "nvidia.com/gpu.present=true")
    control_plane.make_namespace(HOME)
    return made


def kubeconfig(plane: ControlPlane, token: str) -> Path:
    """A kubeconfig with a service account's token and nothing else."""
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token.strip()}
    path = plane.rooms.state / f"{hashlib.sha256(token.encode()).hexdigest()[:8]}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


class Installed:
    """The chart on the cluster; the scheduler runs with its arguments and its service account's rights."""

    def __init__(self, helm: str, plane: ControlPlane) -> None:
        self.helm = helm
        self.plane = plane
        self.part: Part | None = None

    def put(self, verb: str, *flags: str) -> None:
        # Tests before this one may have applied the CRDs by hand.
        flags = ("--timeout", "60s", "--take-ownership", ON_FAKE_NODES, *flags)
        run(self.helm, verb, "aliquot", str(CHART), "--namespace", HOME, *flags, plane=self.plane)

    def start(self) -> None:
        """Run the scheduler as the Deployment says now."""
        self.stop()
        deployment = self.plane.api.get(f"/apis/apps/v1/namespaces/{HOME}/deployments/aliquot-scheduler")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        filled = [text.replace("$(POD_NAME)", "chart-0").replace("$(POD_IP)", POD_IP) for text in container["args"]]
        command = [sys.executable, "-m", "aliquot.cli", *filled, "--kubeconfig", str(self._account())]
        self.part = Part(
            "aliquot-scheduler-chart",
            self.plane.rooms,
            lambda: command,
            lambda: self.plane.answers(PORT, "/leadz"),
            environment={"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]},
        )
        self.part.start()

    def _account(self) -> Path:
        return kubeconfig(
            self.plane, self.plane.kubectl("create", "token", "aliquot-scheduler", "-n", HOME, "--duration=1h")
        )

    def configure(self) -> None:
        """Let kube-scheduler run with the chart's own ConfigMap; what is only of the test is where the extender is."""
        held = self.plane.api.get(f"/api/v1/namespaces/{HOME}/configmaps/aliquot-kube-scheduler")
        given = yaml.safe_load(held["data"]["config.yaml"])
        given["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{PORT}"
        given["profiles"].append({"schedulerName": "default-scheduler"})
        self.plane.schedule_with(given)

    def stop(self) -> None:
        """End the scheduler."""
        if self.part is not None:
            self.part.stop()
            self.part = None

    def bundles(self) -> list[str]:
        """What the API server trusts in each webhook."""
        found = []
        for kind in ("mutating", "validating"):
            path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/aliquot"
            found += [hook["clientConfig"].get("caBundle", "") for hook in self.plane.api.get(path)["webhooks"]]
        return found


def can(plane: ControlPlane, *question: str, account: str = "aliquot-scheduler") -> bool:
    """May a service account of the chart do that?"""
    who = f"system:serviceaccount:{HOME}:{account}"
    verb, what, *where = question
    what, _, sub = what.partition("/")
    asked = (verb, what, f"--subresource={sub}", *where)
    return "yes" == plane.kubectl("auth", "can-i", *asked, "--as", who, check=False).strip()


def led_to(plane: ControlPlane) -> list[str]:
    """Where the extender's Service leads."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{HOME}/endpointslices"
    found = plane.api.get(f"{path}?labelSelector=kubernetes.io%2Fservice-name%3Daliquot-extender")["items"]
    return [address for part in found for endpoint in part["endpoints"] for address in endpoint["addresses"]]


def check_rights(plane: ControlPlane, namespace: str) -> None:
    """What nobody of the chart may do, and what only one of them may."""
    never = (
        ("get", "secrets", "-n", namespace),
        ("get", "secrets", "-n", "kube-system"),
        ("create", "clusterrolebindings"),
        ("delete", "nodes"),
        ("delete", "sharepods", "-n", namespace),
        ("create", "pods/exec", "-n", namespace),
    )
    for account in ("aliquot-scheduler", "aliquot-node"):
        for question in never:
            assert not can(plane, *question, account=account), (account, question)
    assert not can(plane, "delete", "pods", "-n", namespace)
    assert not can(plane, "patch", "nodes")
    assert not can(plane, "create", "pods/binding", "-n", namespace, account="aliquot-node")
    for question in (("patch", "nodes/status"), ("patch", "pods", "-n", namespace), ("watch", "pods", "-A")):
        assert can(plane, *question, account="aliquot-node"), question


def _names(plane: ControlPlane, namespace: str) -> list[str]:
    return [pod["metadata"]["name"] for pod in Pods(plane, namespace).all()]


def sharepod(name: str) -> dict[str, Any]:
    """A SharePod of 0.3."""
    container = {"name": "main", "image": "busybox"}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    return {
        "apiVersion": "aliquot.dev/v1alpha1",
        "kind": "SharePod",
        "metadata": {"name": name},
        "spec": {"gpu": {"request": "0.3"}, "template": {"spec": spec}},
    }


@pytest.fixture
def bound(control_plane: ControlPlane, namespace: str, helm: str) -> Iterator[tuple[str, str]]:
    """Two nodes with a pod of the agent's account on each, and the accounts' rights from the chart."""
    nodes = control_plane.fake_nodes(2, "v100", gpus=1, prefix="bound")
    made = rendered(helm, "--set=claims.enabled=true")
    rights = ("ServiceAccount", "Role", "ClusterRole", "Policy", "Binding")
    ours = ("aliquot-node", "aliquot-scheduler")
    found = [body for (kind, name), body in made.items() if name in ours and kind.endswith(rights)]
    text = yaml.safe_dump_all(found).replace(HOME, namespace)
    control_plane.kubectl("apply", "-f", "-", input_=text)
    for node in nodes:
        spec = {"nodeName": node, "serviceAccountName": "aliquot-node", "containers": [{"name": "c", "image": "i"}]}
        control_plane.api.create(f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": node}, "spec": spec})
    yield nodes[0], nodes[1]
    control_plane.kubectl("delete", "-f", "-", input_=text)
    control_plane.remove_nodes(nodes)


def allocated_claim(plane: ControlPlane, path: str, node: str) -> str:
    """The name of a claim that is allocated on a node."""
    name = f"claim-{node}"
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu-share.aliquot.dev"}}
    plane.api.create(path, {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}})
    result = {"request": "gpu", "driver": "gpu.aliquot.dev", "pool": node, "device": "gpu-0"}
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": terms}}
    status = json.dumps({"status": {"allocation": allocation}})
    where = ("-n", path.split("/")[-2], "--subresource=status", "--type=merge", "-p", status)
    plane.kubectl("patch", "resourceclaim", name, *where)
    return name


def refusal(account: Path, path: str, body: dict[str, Any] | None, kind: str = MERGE) -> str:
    """What the API server says against a patch, or against a deletion without a body; empty if it does it."""

    async def ask() -> str:
        async with Api.connect(str(account)) as api:
            try:
                content = json.dumps(body).encode() if body else None
                where, _, manager = path.partition("?fieldManager=")
                params = {"fieldManager": manager} if manager else None
                method = "PATCH" if body else "DELETE"
                await api.request(method, where, content=content, content_type=kind, params=params)
            except KubeError as error:
                return str(error)
        return ""

    return asyncio.run(ask())


def test_the_scheduler_changes_annotations_of_pods_only(
    control_plane: ControlPlane, namespace: str, bound: tuple[str, str]
):
    """Its token writes a plan, and neither labels, owners nor anything that the pod runs."""
    account = kubeconfig(control_plane, control_plane.kubectl("create", "token", "aliquot-scheduler", "-n", namespace))
    pod, spec = f"/api/v1/namespaces/{namespace}/pods/{bound[0]}", {"activeDeadlineSeconds": 5}

    def refused(body: dict[str, Any], path: str = pod) -> bool:
        return "but its annotations" in refusal(account, path, body)

    # A policy is in force some time after it was made.
    eventually(lambda: refused({"metadata": {"labels": {"a": f"n{time.monotonic_ns()}"}}}), "the policy is in force")
    assert refused({"metadata": {"finalizers": ["a.example/b"]}})
    assert refused({"spec": spec})
    assert "" == refusal(account, pod, {"metadata": {"annotations": {"aliquot.dev/plan": "x"}}})

    gated = f"/api/v1/namespaces/{namespace}/pods/gated"
    gates = [{"name": "aliquot.dev/place"}, {"name": "another.example/gate"}]
    waits = {"containers": [{"name": "c", "image": "i"}], "schedulingGates": gates}
    control_plane.api.create(gated.removesuffix("/gated"), {"metadata": {"name": "gated"}, "spec": waits})
    assert refused({"spec": {"schedulingGates": None}}, gated)
    assert refused({"spec": {"schedulingGates": gates[1:], "nodeSelector": {"a": "b"}}}, gated)
    assert "" == refusal(account, gated, {"spec": {"schedulingGates": gates[1:]}})


def test_the_scheduler_allocates_claims(control_plane: ControlPlane, namespace: str, bound: tuple[str, str]):
    """With the chart's rights it makes a template, guards a claim, writes its allocation and takes it back."""
    account = kubeconfig(control_plane, control_plane.kubectl("create", "token", "aliquot-scheduler", "-n", namespace))
    claims = f"{DEVICES}/namespaces/{namespace}/resourceclaims"
    name = allocated_claim(control_plane, claims, bound[0])
    allocation = control_plane.api.get(f"{claims}/{name}")["status"]["allocation"]
    guard = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {
        "name": name, "finalizers": ["resource.kubernetes.io/delete-protection"]
    }}  # fmt: skip

    assert "" == refusal(account, f"{claims}/{name}?fieldManager=aliquot-scheduler", guard, kind=APPLY)
    for wanted in (None, allocation):
        assert "" == refusal(account, f"{claims}/{name}/status", {"status": {"allocation": wanted}})


def test_a_node_agent_writes_to_its_own_node_only(control_plane: ControlPlane, namespace: str, bound: tuple[str, str]):
    """With the token of a pod on one node, the agent changes neither another node nor its pods, and no node's spec."""
    mine, other = bound
    command = ("create", "token", "aliquot-node", "-n", namespace)
    uid = control_plane.pod(namespace, mine)["metadata"]["uid"]
    at_node = ("--bound-object-kind=Pod", f"--bound-object-name={mine}", f"--bound-object-uid={uid}")
    agent, unbound = (kubeconfig(control_plane, control_plane.kubectl(*command, *f)) for f in (at_node, ()))
    pods, nodes = f"/api/v1/namespaces/{namespace}/pods", "/api/v1/nodes"
    note = {"metadata": {"annotations": {"aliquot.dev/gpus": "x"}}}
    capacity = {"status": {"capacity": {"aliquot.dev/gpu-memory": "9"}}}

    # A policy is in force some time after it was made.
    eventually(lambda: "its own node only" in refusal(agent, f"{nodes}/{other}", note), "the policy is not in force")

    assert "its own node only" in refusal(agent, f"{nodes}/{other}/status", capacity)
    assert "pods of its own node only" in refusal(agent, f"{pods}/{other}", note)
    assert "pods of its own node only" in refusal(agent, f"{pods}/{other}", None)
    assert "may not change the spec" in refusal(agent, f"{nodes}/{mine}", {"spec": {"unschedulable": True}})
    assert "names no node" in refusal(unbound, f"{nodes}/{mine}", note)
    assert "" == refusal(agent, f"{nodes}/{mine}", note) == refusal(agent, f"{nodes}/{mine}/status", capacity)
    assert "" == refusal(agent, f"{pods}/{mine}", note) == refusal(agent, f"{pods}/{mine}", None)

    slices, claims = f"{DEVICES}/resourceslices", f"{DEVICES}/namespaces/{namespace}/resourceclaims"
    for node in (other, mine):
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.aliquot.dev", "nodeName": node, "pool": pool, "devices": []}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"slice-{node}"}}
        said = refusal(agent, f"{slices}/slice-{node}?fieldManager=x", body | {"spec": spec}, kind=APPLY)
        assert said == "" if node == mine else "devices of its own node only" in said
        device = {"driver": "gpu.aliquot.dev", "pool": node, "device": "gpu-0", "data": {"tenant": "x"}}
        status = {"status": {"devices": [device]}}
        said = refusal(agent, f"{claims}/{allocated_claim(control_plane, claims, node)}/status", status)
        assert said == "" if node == mine else "changing status.devices requires" in said
    control_plane.kubectl("delete", "resourceslices", f"slice-{mine}")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_install_upgrade_and_uninstall(control_plane: ControlPlane, namespace: str, nodes: list[str], helm: str):
    """With the chart's rights alone pods get their GPUs; upgrades keep certificates; an uninstall leaves all pods."""
    api, chart = control_plane.api, Installed(helm, control_plane)
    shares = f"/apis/aliquot.dev/v1alpha1/namespaces/{namespace}/sharepods"
    try:
        # Without the webhook first: nothing here carries the API server's questions to a Service.
        chart.put("install", "--set=webhook.enabled=false,scheduler.replicas=2", "--wait")
        chart.start()
        chart.configure()
        api.create(f"/api/v1/namespaces/{namespace}/pods", gpu_pod("user", percent(30, "4Gi")))
        api.create(shares, sharepod("share"))
        before = control_plane.wait_running(namespace, "user")
        assert PLAN in before["metadata"]["annotations"]
        eventually(lambda: api.get(f"{shares}/share").get("status", {}).get("phase") == "Running", "no SharePod runs")
        assert api.get(f"{shares}/share")["status"]["gpuUUID"]
        check_rights(control_plane, namespace)
        eventually(lambda: [POD_IP] == led_to(control_plane), "kube-scheduler is not led to the leader")

        chart.put("upgrade")
        chart.start()
        webhooks = (CHART / "files/webhooks.yaml").read_text().count("clientConfig:")
        eventually(lambda: all(chart.bundles()) and len(chart.bundles()) == webhooks, "the webhooks are not trusted")
        trusted = chart.bundles()
        chart.put("upgrade", "--set=scheduler.policy=fgd,scheduler.gpus=coexist")
        assert trusted == chart.bundles()
        assert can(control_plane, "delete", "pods", "-n", HOME) and not can(control_plane, "delete", "pods", "-A")
        chart.stop()
        learned = api.get(f"/api/v1/namespaces/{HOME}/configmaps/aliquot-learned")
        assert "learned.json" in learned["data"]  # written at its end, with the chart's rights

        run(helm, "uninstall", "aliquot", "--namespace", HOME, "--wait", "--timeout", "60s", plane=control_plane)
        after = control_plane.pod(namespace, "user")
        assert (before["metadata"]["uid"], "Running") == (after["metadata"]["uid"], after["status"]["phase"])
        assert before["metadata"]["annotations"][PLAN] == after["metadata"]["annotations"][PLAN]
        assert "Running" == api.get(f"{shares}/share")["status"]["phase"]
        assert "" == control_plane.kubectl("get", "mutatingwebhookconfigurations", "-o", "name")
        eventually(lambda: [] == led_to(control_plane), "the leader's address outlives its service", 40)
        left = json.loads(control_plane.kubectl("get", "pods,sharepods,vgpus,gpuquotas", "-A", "-o", "json"))
        assert [] == [o["metadata"]["name"] for o in left["items"] if o["metadata"].get("finalizers")]
        api.delete(f"{shares}/share")
        # The garbage collector looks for new kinds of owners every half minute.
        only_user = ["user"]
        eventually(lambda: only_user == _names(control_plane, namespace), "the SharePod's pod stays", 70)
        control_plane.kubectl("delete", "namespace", HOME, "--timeout=60s", timeout_s=70)
    finally:
        chart.stop()
        control_plane.kubectl("delete", "vgpus", "--all", check=False)


def test_the_api_server_takes_the_plain_manifests(control_plane: ControlPlane, nodes: list[str], helm: str):
    """Every object of deploy/manifests is accepted, in the namespace that the file itself makes."""
    file = ROOT / "deploy" / "manifests" / "aliquot.yaml"
    documents = list(yaml.safe_load_all(file.read_text()))
    space = documents[0]["metadata"]["name"]
    control_plane.make_namespace(space)
    try:
        flags = ("--server-side", "--force-conflicts", "--dry-run=server", "-f", str(file))
        taken = control_plane.kubectl("apply", *flags).splitlines()
    finally:
        control_plane.remove_namespace(space)

    assert len(documents) == len(taken)
