"""The commands of a terminal that answer what a page shows, quoted for a shell."""

from __future__ import annotations

import shlex

from aliquot.model.ids import claim_key, split_key
from aliquot.model.sharepod import GpuSpec
from aliquot.status import COMPLETED, PENDING, RUNNING, StatusSource, Workload

KUBECTL = "kubectl aliquot"
RAN = (RUNNING, COMPLETED, "Error", "CrashLoopBackOff", "OOMKilled")
"""States of pods that have logs."""


def in_cluster(facts: StatusSource) -> bool:
    """Whether these facts are of a cluster."""
    return facts.program == KUBECTL


def top(facts: StatusSource) -> str:
    """GPUs with their tenants."""
    return f"{facts.program} top"


def workloads(facts: StatusSource) -> str:
    """What holds or wants a share."""
    return f"{KUBECTL} get sharepods -A" if in_cluster(facts) else "aliquot get"


def explain(facts: StatusSource, name: str) -> str:
    """Why a workload waits or is placed where it is; tenants are named namespace/pod/container."""
    if not in_cluster(facts):
        return f"aliquot explain {shlex.quote(name)}"
    claim = claim_key(name)
    namespace, rest = split_key(claim or name)
    what = f"{'claim' if claim else 'pod'} {shlex.quote(rest.partition('/')[0])}"
    return f"{KUBECTL} explain {what}" + (f" -n {shlex.quote(namespace)}" if namespace else "")


def of_workload(facts: StatusSource, workload: Workload) -> list[str]:
    """What tells most of a workload: its logs and processes once a program of it has run, then why it waits or is where
    it is. The pages themselves show neither output nor command lines, which may have secrets."""
    if workload.kind == "Run":
        return [top(facts), explain(facts, workload.name)]
    claim = claim_key(workload.name)
    namespace, rest = split_key(claim or workload.name)
    name = f"{shlex.quote(rest)} -n {shlex.quote(namespace)}" if namespace else shlex.quote(workload.name)
    if workload.state == PENDING:
        own = []
    elif not in_cluster(facts):
        own = [f"aliquot logs {name}", f"aliquot describe {name}"]
    elif claim:
        own = [f"kubectl describe resourceclaim {name}"]
    elif workload.state in RAN or workload.restarts:
        own = [f"kubectl logs {name} --all-containers"]
    else:
        own = [f"kubectl describe pod {name}"]
    return [*own, explain(facts, workload.name)]


def topology(facts: StatusSource, node: str) -> str:
    """How the GPUs of a node are connected."""
    return f"{KUBECTL} topo {shlex.quote(node)}" if in_cluster(facts) else "aliquot topo"


def pool(facts: StatusSource) -> str:
    """The named GPUs; empty for one machine, where no command lists them."""
    return f"{KUBECTL} get vgpus" if in_cluster(facts) else ""


def trial(facts: StatusSource, gpu: GpuSpec, uuid: str = "") -> str:
    """Where a request would be placed, if need be on one GPU; empty for a cluster, where no command asks that."""
    if in_cluster(facts):
        return ""
    given = {
        "--gpu-request": gpu.request, "--gpu-limit": gpu.limit, "--gpu-mem": gpu.memory, "--gpu-model": gpu.model,
        "--gpu": uuid, "--gpu-id": gpu.gpu_id, "--affinity": gpu.affinity, "--anti-affinity": gpu.anti_affinity,
        "--exclusion": gpu.exclusion, "--wake": gpu.wake,
    }  # fmt: skip
    options = [f"{option} {shlex.quote(str(value))}" for option, value in given.items() if value not in (None, "")]
    return " ".join(["aliquot explain", *options, *(["--mixed-models"] if gpu.mixed_models else [])])
