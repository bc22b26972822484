"""`kubectl aliquot doctor`: is the cluster set up so that a pod that requests a part of a GPU gets it?"""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from aliquot.cli.doctor import report
from aliquot.cli.kubectl.options import agent_port_option, form_option, target_options
from aliquot.cli.kubectl.scene import ClusterScene, Target, listed, read_scene
from aliquot.cli.kubectl.scheduler_link import Link, scheduler_option
from aliquot.cli.kubectl.usage import Usage, read_usage
from aliquot.kube.api import Api
from aliquot.kube.dialects import read
from aliquot.kube.errors import Forbidden, KubeError
from aliquot.kube.manifest import read_yaml_file
from aliquot.kube.names import GPU_PERCENT, GPUS
from aliquot.kube.objects import Pod, Wire
from aliquot.kube.plan import BadPlan, read_plan
from aliquot.kube.requests import BadPod
from aliquot.kube.resources import LEASES
from aliquot.lib.package import version
from aliquot.model.errors import UserError
from aliquot.model.findings import Finding
from aliquot.scheduler.config import kube_scheduler_config

OLDEST: Final = (1, 29)
"""The first Kubernetes version in which every API used here is stable."""

LEASE: Final = "aliquot-scheduler"
NAMED: Final = 3


class _Version(Wire):
    major: str = ""
    minor: str = ""
    git_version: str = ""


@click.command()
@scheduler_option
@click.option(
    "--scheduler-config",
    "config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="kube-scheduler's configuration file, to be checked too; it is on the control plane's machines.",
)
@agent_port_option
@target_options
@form_option
def doctor(scheduler: str, config: Path | None, agent_port: int, target: Target, form: str) -> int:
    """Check the cluster's set-up, with a remedy for each problem; exit status 1 when there is one."""
    link = Link.of(scheduler)
    findings = [] if config is None else configuration(config)
    scene = target.run(read_scene(target))
    findings += target.run(_asked(target, link))
    used = target.run(read_usage(target, scene, agent_port))
    findings += [*_kinds(scene), *_nodes(scene), *_agents(used), *pod_findings(scene)]
    return report(findings, form)


async def _asked(target: Target, link: Link) -> list[Finding]:
    async with target.connect() as api:
        found = [await _look("Kubernetes", api, _kubernetes)]
        found.append(await _look("scheduler", api, lambda a: _scheduler(a, link)))
        found.append(await _look("versions", api, lambda a: _versions(a, link)))
        found.append(await _look("lead", api, lambda a: _lead(a, link)))
        return found


async def _look(what: str, api: Api, look: Callable[[Api], Awaitable[Finding]]) -> Finding:
    """Run one check; a missing permission is reported as a note."""
    try:
        return await look(api)
    except Forbidden as error:
        return Finding(what, "note", f"permission denied: {error}", "run it with the rights of an administrator")
    except KubeError as error:
        return Finding(what, "fault", str(error), "is the scheduler running? Name its service with --scheduler")


async def _kubernetes(api: Api) -> Finding:
    version = msgspec.json.decode(await api.request("GET", "/version"), type=_Version)
    digits = "".join(c for c in version.minor if c.isdigit())
    if version.major.isdigit() and digits and (int(version.major), int(digits)) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return Finding("Kubernetes", "fault", f"{version.git_version} is older than {oldest}", f"upgrade to {oldest}")
    return Finding("Kubernetes", "ok", version.git_version)


async def _scheduler(api: Api, link: Link) -> Finding:
    answer = (await link.text(api, "/readyz")).strip()
    state = "ok" if answer == "ok" else "fault"
    return Finding("scheduler", state, f"{link.namespace}/{link.service} answers: {answer}")


async def _versions(api: Api, link: Link) -> Finding:
    theirs, ours = (await link.text(api, "/version")).strip(), version()
    if theirs == ours:
        return Finding("versions", "ok", f"the scheduler and this program are {ours}")
    text = f"the scheduler is {theirs}, this program is {ours}"
    return Finding("versions", "note", text, "their output may differ; use the same version of both")


async def _lead(api: Api, link: Link) -> Finding:
    """A scheduler renews the lease; clocks may differ by a lease's duration."""
    leases = [one for one in await listed(api, LEASES) if one.metadata.name == LEASE]
    if not leases:
        way_out = "no scheduler ran yet, or it runs with --no-leader-elect; then there must be one only"
        return Finding("lead", "note", f"there is no lease {LEASE}", way_out)
    spec = leases[0].spec
    if not spec.holder_identity or not spec.renew_time:
        return Finding("lead", "fault", "no scheduler leads", "is the scheduler running?")
    renewed = datetime.datetime.fromisoformat(spec.renew_time)
    old_s = (datetime.datetime.now(datetime.UTC) - renewed).total_seconds()
    lasts_s = spec.lease_duration_seconds or 15
    if old_s > 2 * lasts_s:
        found = f"{spec.holder_identity} has not renewed its lease for {old_s:.0f} s"
        return Finding("lead", "fault", found, "is it running? Another takes over once the lease has ended")
    return Finding("lead", "ok", f"{spec.holder_identity} leads")


def _kinds(scene: ClusterScene) -> list[Finding]:
    if scene.missing:
        found = f"{', '.join(scene.missing)} are not known here"
        return [Finding("CRDs", "fault", found, "kubectl apply -f deploy/crds, or helm upgrade --install")]
    return [Finding("CRDs", "ok", "sharepods, vgpus, gpuquotas")]


def _nodes(scene: ClusterScene) -> list[Finding]:
    cluster, found = scene.ledger.cluster, []
    for name, why in sorted(scene.ledger.faulty.items()):
        found.append(Finding(f"node {name}", "fault", why, "check the log of its aliquot node"))
    for node in scene.nodes:
        name = node.metadata.name
        if GPUS not in node.metadata.annotations or name in scene.ledger.faulty:
            continue
        if not node.status.allocatable.get(GPU_PERCENT, 0) or str(node.status.allocatable[GPU_PERCENT]) == "0":
            way_out = "is its aliquot node running and registered with kubelet?"
            found.append(Finding(f"node {name}", "fault", f"kubelet offers no {GPU_PERCENT}", way_out))
    if not cluster.index:
        way_out = "run aliquot node where GPUs are (the chart's DaemonSet; see its nodeSelector)"
        return [*found, Finding("nodes", "fault", "no node has GPUs that Aliquot knows of", way_out)]
    gpus = sum(len(spec.gpus) for spec in cluster.nodes)
    return [*found, Finding("nodes", "ok", f"{len(cluster.index)} of {len(scene.nodes)} have {gpus} GPUs")]


def _agents(used: Usage) -> list[Finding]:
    """Whether the agents answer. Pods get their shares without; what they use is not known then."""
    way_out = "is a pod of aliquot node there? kubectl get pods -A -o wide -l app.kubernetes.io/component=node"
    found = [Finding("agents", "note", sentence, way_out) for sentence in used.unknown()]
    return [*([Finding("agents", "ok", f"{len(used.nodes)} report what is used")] if used.nodes else []), *found]


def pod_findings(scene: ClusterScene) -> list[Finding]:
    """Pods with an inconsistent plan, without their share, or bound by a scheduler that does not call Aliquot."""
    unplanned = [pod.metadata.key for pod in scene.pods if _past_us(scene, pod)]
    found = []
    if unplanned:
        more = f" and {len(unplanned) - NAMED} more" if len(unplanned) > NAMED else ""
        text = f"{len(unplanned)} request GPUs and were bound without: {', '.join(unplanned[:NAMED])}{more}"
        way_out = "the scheduler that bound them does not call Aliquot: add the extender, recreate the pods"
        found.append(Finding("pods", "fault", text, way_out))
    keys = {pod.metadata.uid: pod.metadata.key for pod in scene.pods}
    for uid, why in scene.ledger.inconsistent.items():
        found.append(Finding(f"pod {keys.get(uid, uid)}", "fault", why, "delete it, or the pods that hold the same"))
    way_out = "delete it: a container has its share when its agent runs at its start"
    found += [
        Finding(f"pod {p.metadata.key}", "fault", p.share_missing, way_out) for p in scene.pods if p.share_missing
    ]
    return found or [Finding("pods", "ok", f"{len(scene.ledger.allocations)} hold parts of GPUs, all within capacity")]


def _past_us(scene: ClusterScene, pod: Pod) -> bool:
    """Whether the pod requests a GPU, is on a node with GPUs of ours, and has no plan."""
    if pod.ended or pod.spec.node_name not in scene.ledger.cluster.index:
        return False
    try:
        return read(pod) is not None and read_plan(pod.metadata.annotations) is None
    except (BadPod, BadPlan):
        return False


def configuration(path: Path) -> list[Finding]:
    """The problems of a KubeSchedulerConfiguration, compared with the one that `aliquot scheduler` prints.

    Raises:
        UserError: the file cannot be read.
    """
    given = read_yaml_file(path)
    if not isinstance(given, dict) or given.get("kind") != "KubeSchedulerConfiguration":
        raise UserError(f"{path} is not a KubeSchedulerConfiguration; give the file of kube-scheduler's --config")
    return _of_configuration(given)


def _of_configuration(given: dict[str, Any]) -> list[Finding]:
    way_out = "aliquot scheduler --print-kube-scheduler-config prints a correct one"
    extenders = [one for one in given.get("extenders") or [] if _manages(one)]
    if not extenders:
        found = f"no extender manages {GPU_PERCENT}"
        return [Finding("configuration", "fault", found, way_out)]
    found_ = []
    extender = extenders[0]
    wanted = kube_scheduler_config(str(extender.get("urlPrefix", "")))["extenders"][0]
    for key in ("filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb"):
        if extender.get(key) != wanted[key]:
            text = f"the extender's {key} is {extender.get(key) or 'not set'}, it must be {wanted[key]}"
            found_.append(Finding("configuration", "fault", text, way_out))
    if extender.get("ignorable"):
        text = "the extender is ignorable: while it is down, pods are bound without a GPU"
        found_.append(Finding("configuration", "fault", text, "set ignorable: false"))
    if given.get("percentageOfNodesToScore") != 100:
        text = f"percentageOfNodesToScore is {given.get('percentageOfNodesToScore') or 'not set'}"
        found_.append(Finding("sampling", "note", f"{text}: the only node with the right GPU may be missed", "set 100"))
    return found_ or [Finding("configuration", "ok", f"calls the extender at {extender.get('urlPrefix')}")]


def _manages(extender: Any) -> bool:
    managed = extender.get("managedResources") or [] if isinstance(extender, dict) else []
    return any(isinstance(one, dict) and one.get("name") == GPU_PERCENT for one in managed)
