"""`kubectl aliquot doctor`: is the cluster set up so that a pod that requests a part of a GPU gets it?"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from aliquot.cli.doctor import report
from aliquot.cli.kubectl.scene import (
    ClusterScene,
    Target,
    agent_port_option,
    form_option,
    listed,
    read_scene,
    target_options,
)
from aliquot.cli.kubectl.services import MAX_NAMES, Link, Usage, read_usage, scheduler_option
from aliquot.kube.dialects import read
from aliquot.kube.errors import Forbidden, KubeError
from aliquot.kube.manifest import read_yaml_file
from aliquot.kube.names import GPU_PERCENT, GPUS
from aliquot.kube.objects import LEASES, LeaseSpec, Wire
from aliquot.kube.plan import BadPlan, read_plan
from aliquot.kube.requests import BadPod
from aliquot.lib.decoding import decode_json
from aliquot.lib.package import version
from aliquot.model.errors import UserError
from aliquot.model.findings import Finding
from aliquot.scheduler.settings import kube_scheduler_config

OLDEST: Final = (1, 29)
"""The first Kubernetes version in which every API used here is stable."""

LEASE: Final = "aliquot-scheduler"


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
    """Check the cluster's set-up, with a remedy for each problem; exit status 1 when there is one.

    Example, the problems of the cluster, as JSON:
      kubectl aliquot doctor -o json
    """
    link = Link.of(scheduler)
    findings = [] if config is None else configuration(config)
    scene = target.run(read_scene(target))
    findings += target.run(served_findings(target, link))
    usage = target.run(read_usage(target, scene, agent_port))
    return report([*findings, *scene_findings(scene, usage), *pod_findings(scene)], form)


async def served_findings(target: Target, link: Link) -> list[Finding]:
    """Kubernetes' version, whether the scheduler answers, its version, and who leads."""
    findings: list[Finding] = []

    @contextlib.contextmanager
    def check(what: str) -> Iterator[None]:
        """What cannot be checked is reported: a missing permission as a note."""
        try:
            yield
        except Forbidden as error:
            way_out = "run it with the rights of an administrator"
            findings.append(Finding(what, "note", f"permission denied: {error}", way_out))
        except KubeError as error:
            way_out = "is the scheduler running? Name its service with --scheduler"
            findings.append(Finding(what, "fault", str(error), way_out))

    async with target.connect() as api:
        with check("Kubernetes"):
            found = decode_json(await api.request("GET", "/version"), _Version)
            digits = "".join(c for c in found.minor if c.isdigit())
            if found.major.isdigit() and digits and (int(found.major), int(digits)) < OLDEST:
                oldest = ".".join(map(str, OLDEST))
                text = f"{found.git_version} is older than {oldest}"
                findings.append(Finding("Kubernetes", "fault", text, f"upgrade to {oldest}"))
            else:
                findings.append(Finding("Kubernetes", "ok", found.git_version))
        with check("scheduler"):
            answer = (await link.text(api, "/readyz")).strip()
            state = "ok" if answer == "ok" else "fault"
            findings.append(Finding("scheduler", state, f"{link.namespace}/{link.service} answers: {answer}"))
        with check("versions"):
            theirs, ours = (await link.text(api, "/version")).strip(), version()
            if theirs == ours:
                findings.append(Finding("versions", "ok", f"the scheduler and this program are {ours}"))
            else:
                text = f"the scheduler is {theirs}, this program is {ours}"
                way_out = "their output may differ; use the same version of both"
                findings.append(Finding("versions", "note", text, way_out))
        with check("lead"):
            leases = [one for one in await listed(api, LEASES) if one.metadata.name == LEASE]
            findings.append(_lead(leases[0].spec if leases else None))
    return findings


def _lead(spec: LeaseSpec | None) -> Finding:
    """Whether a scheduler leads: it renews the lease, and clocks may differ by a lease's duration."""
    if spec is None:
        way_out = "no scheduler ran yet, or it runs with --no-leader-elect; then there must be one only"
        return Finding("lead", "note", f"there is no lease {LEASE}", way_out)
    if not spec.holder_identity or not spec.renew_time:
        return Finding("lead", "fault", "no scheduler leads", "is the scheduler running?")
    renewed = datetime.datetime.fromisoformat(spec.renew_time)
    old_s = (datetime.datetime.now(datetime.UTC) - renewed).total_seconds()
    if old_s > 2 * (spec.lease_duration_seconds or 15):
        text = f"{spec.holder_identity} has not renewed its lease for {old_s:.0f} s"
        return Finding("lead", "fault", text, "is it running? Another takes over once the lease has ended")
    return Finding("lead", "ok", f"{spec.holder_identity} leads")


def scene_findings(scene: ClusterScene, usage: Usage) -> list[Finding]:
    """The kinds that are installed, the nodes' inventories, and whether the agents answer.

    Pods get their shares without an agent's answer; only what they use is not known then.
    """
    cluster, faulty = scene.ledger.cluster, scene.ledger.faulty
    if scene.missing:
        text = f"{', '.join(scene.missing)} are not known here"
        findings = [Finding("CRDs", "fault", text, "kubectl apply -f deploy/crds, or helm upgrade --install")]
    else:
        findings = [Finding("CRDs", "ok", "sharepods, vgpus, gpuquotas")]
    for name, why in sorted(faulty.items()):
        findings.append(Finding(f"node {name}", "fault", why, "check the log of its aliquot node"))
    for node in scene.nodes:
        name, offered = node.metadata.name, node.status.allocatable.get(GPU_PERCENT, 0)
        if GPUS in node.metadata.annotations and name not in faulty and (not offered or str(offered) == "0"):
            way_out = "is its aliquot node running and registered with kubelet?"
            findings.append(Finding(f"node {name}", "fault", f"kubelet offers no {GPU_PERCENT}", way_out))
    if cluster.index:
        gpus = sum(len(spec.gpus) for spec in cluster.nodes)
        findings.append(Finding("nodes", "ok", f"{len(cluster.index)} of {len(scene.nodes)} have {gpus} GPUs"))
    else:
        way_out = "run aliquot node where GPUs are (the chart's DaemonSet; see its nodeSelector)"
        findings.append(Finding("nodes", "fault", "no node has GPUs that Aliquot knows of", way_out))
    if usage.nodes:
        findings.append(Finding("agents", "ok", f"{len(usage.nodes)} report what is used"))
    way_out = "is a pod of aliquot node there? kubectl get pods -A -o wide -l app.kubernetes.io/component=node"
    return findings + [Finding("agents", "note", sentence, way_out) for sentence in usage.unknown()]


def pod_findings(scene: ClusterScene) -> list[Finding]:
    """Pods with an inconsistent plan, without their share, or bound by a scheduler that does not call Aliquot."""
    unplanned, findings = [], []
    for pod in scene.pods:
        if not pod.ended and pod.spec.node_name in scene.ledger.cluster.index:
            with contextlib.suppress(BadPod, BadPlan):
                if read(pod) is not None and read_plan(pod.metadata.annotations) is None:
                    unplanned.append(pod.metadata.key)
    if unplanned:
        more = f" and {len(unplanned) - MAX_NAMES} more" if len(unplanned) > MAX_NAMES else ""
        text = f"{len(unplanned)} request GPUs and were bound without: {', '.join(unplanned[:MAX_NAMES])}{more}"
        way_out = "the scheduler that bound them does not call Aliquot: add the extender, recreate the pods"
        findings.append(Finding("pods", "fault", text, way_out))
    keys = {pod.metadata.uid: pod.metadata.key for pod in scene.pods}
    for uid, why in scene.ledger.inconsistent.items():
        findings.append(Finding(f"pod {keys.get(uid, uid)}", "fault", why, "delete it, or the pods that hold the same"))
    way_out = "delete it: a container has its share when its agent runs at its start"
    findings += [
        Finding(f"pod {p.metadata.key}", "fault", p.share_missing, way_out) for p in scene.pods if p.share_missing
    ]
    holders = len(scene.ledger.allocations)
    return findings or [Finding("pods", "ok", f"{holders} hold parts of GPUs, all within capacity")]


def configuration(path: Path) -> list[Finding]:
    """The problems of a KubeSchedulerConfiguration, compared with the one that `aliquot scheduler` prints.

    Raises:
        UserError: the file cannot be read.
    """
    given = read_yaml_file(path)
    if not isinstance(given, dict) or given.get("kind") != "KubeSchedulerConfiguration":
        raise UserError(f"{path} is not a KubeSchedulerConfiguration; give the file of kube-scheduler's --config")
    way_out = "aliquot scheduler --print-kube-scheduler-config prints a correct one"
    extenders = [
        extender
        for extender in given.get("extenders") or []
        if isinstance(extender, dict)
        for resource in extender.get("managedResources") or []
        if isinstance(resource, dict) and resource.get("name") == GPU_PERCENT
    ]
    if not extenders:
        return [Finding("configuration", "fault", f"no extender manages {GPU_PERCENT}", way_out)]
    findings = []
    extender = extenders[0]
    wanted = kube_scheduler_config(str(extender.get("urlPrefix", "")))["extenders"][0]
    for key in ("filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb"):
        if extender.get(key) != wanted[key]:
            text = f"the extender's {key} is {extender.get(key) or 'not set'}, it must be {wanted[key]}"
            findings.append(Finding("configuration", "fault", text, way_out))
    if extender.get("ignorable"):
        text = "the extender is ignorable: while it is down, pods are bound without a GPU"
        findings.append(Finding("configuration", "fault", text, "set ignorable: false"))
    if (sampled := given.get("percentageOfNodesToScore")) != 100:
        text = f"percentageOfNodesToScore is {sampled or 'not set'}: the only node with the right GPU may be missed"
        findings.append(Finding("sampling", "note", text, "set 100"))
    return findings or [Finding("configuration", "ok", f"calls the extender at {extender.get('urlPrefix')}")]
