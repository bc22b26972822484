"""`kubectl aliquot get`: GPUs, SharePods, vGPUs and quotas with their holders, and GPU-hours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from aliquot.cli.forms import Form, form_option, show
from aliquot.cli.hours import CSV, HOURS, HoursView, hours_options, refuse_hours_options
from aliquot.cli.kubectl.scene import ClusterScene, Target, age, name_of, read_scene, target_options
from aliquot.cli.kubectl.services import dashboard_options, read_past
from aliquot.cli.tables import UNBOUNDED, Table, aligned, columns, nearest, reserved
from aliquot.kube.names import PENDING as RESIZE_PENDING
from aliquot.kube.quotas import quotas_of
from aliquot.lib.misspelt import closest
from aliquot.model.errors import UserError
from aliquot.model.quantities import format_mib, format_milli
from aliquot.status import Hours
from aliquot.status.workloads import PENDING

FORMS: Final = ("text", "wide", "json", "yaml", CSV)
KINDS: Final = ("gpus", "sharepods", "vgpus", "quota")
ALIASES: Final = {
    "hour": HOURS,
    "gpu-hours": HOURS,
    "gpu": "gpus",
    "sharepod": "sharepods",
    "shp": "sharepods",
    "vgpu": "vgpus",
    "vg": "vgpus",
    **dict.fromkeys(("quotas", "gpuquota", "gpuquotas", "gq"), "quota"),
}
NEEDS: Final = {"sharepods": "sharepods", "vgpus": "vgpus", "quota": "gpuquotas"}


@click.command()
@click.argument("what", metavar="gpus|sharepods|vgpus|quota|hours")
@click.argument("name", required=False, default="")
@target_options
@form_option(FORMS)
@hours_options
@dashboard_options
def get(what: str, name: str, target: Target, form: Form, since: str, by: str, dashboard: str, token: str) -> None:
    """List gpus, sharepods, vgpus, quota or hours; with NAME only that one (of gpus: those of that node).

    hours are GPU-hours as the dashboard's page shows them to you, of all namespaces unless -n names one.
    -o json and yaml print a list, or the one object that was named. jsonpath=TEMPLATE and custom-columns=COLUMNS pick
    its fields as kubectl does, those of a list under .items.

    Example, every GPU with its UUID:
      kubectl aliquot get gpus -o wide
    """
    kind = ALIASES.get(what, what)
    if kind == HOURS:
        if name:
            raise UserError(f'hours have no names, and "{name}" was given; choose a namespace with -n')
        view = HoursView(since, by, form, "" if target.everywhere else target.namespace)
        view.print(target.run(read_past(target, HOURS, Hours, view.since, dashboard, token)))
        return
    if kind not in KINDS:
        close = closest(what, [*KINDS, *ALIASES])
        others = f"list {', '.join(KINDS)} or {HOURS}, and other kinds with kubectl get"
        hint = f"did you mean {close}?" if close else others
        raise UserError(f'"{what}" is not listed here; {hint}')
    refuse_hours_options(since, by, form, [kind])
    scene = target.run(read_scene(target))
    if (plural := NEEDS.get(kind, "")) in scene.missing:
        raise UserError(f"this cluster has no {plural}; install Aliquot's CRDs (deploy/crds)")
    facts = {"gpus": ClusterScene.gpus, "sharepods": sharepods, "vgpus": vgpus, "quota": quotas}[kind](scene)
    where = f' in namespace "{scene.namespace}"' if kind in ("sharepods", "quota") and scene.namespace else ""
    if name:
        facts = [entry for entry in facts if entry["node" if kind == "gpus" else "name"] == name]
        if not facts:
            raise UserError(f'there are no {kind} called "{name}"{where}; list them: kubectl aliquot get {kind}')
    one = bool(name) and kind != "gpus" and len(facts) == 1
    picked = form.picked(facts, facts[0] if one else {"items": facts})
    if picked is not None:
        click.echo(picked, nl=False)
    elif not facts:
        show(form.word, facts, lambda: [f"no {kind}{where}"])
    else:
        wide = form.word == "wide"
        table = table_of(kind, facts, scene, wide=wide)
        show(form.word, facts[0] if one else facts, lambda: aligned(table, width=UNBOUNDED if wide else columns()))


def sharepods(scene: ClusterScene) -> list[dict[str, Any]]:
    """The SharePods of the namespace with the sizes in force; the state of one that has a pod is the pod's."""
    states = {pod.metadata.key: pod.state for pod in scene.pods}
    found = []
    for pod in filter(scene.here, scene.sharepods):
        meta, status, gpu = pod.metadata, pod.status, pod.spec.gpu
        resize = next((f"resize {one.reason}" for one in status.conditions if one.type == RESIZE_PENDING), "")
        state = states.get(f"{meta.namespace}/{status.pod_name}", status.phase or PENDING)
        sizes = {"request": gpu.request, "limit": gpu.limit, "memory": gpu.memory} | (status.actual if resize else {})
        found.append(
            {"namespace": meta.namespace, "name": meta.name}
            | {name: "" if size is None else str(size) for name, size in sizes.items()}
            | {"state": ", ".join(filter(None, (state, resize))), "node": status.node_name}
            | {"vgpu": status.gpu_id, "uuid": status.gpu_uuid, "pod": status.pod_name, "age": age(meta)}
        )
    return found


def vgpus(scene: ClusterScene) -> list[dict[str, Any]]:
    """The vGPUs of the cluster."""
    return [
        {
            "name": vgpu.metadata.name,
            "node": vgpu.spec.node_name,
            "phase": vgpu.status.phase or "Creating",
            "requested": vgpu.status.requested,
            "model": vgpu.status.model,
            "uuid": vgpu.status.uuid,
            "attached": [one.tenant for one in vgpu.status.attached],
            "age": age(vgpu.metadata),
        }
        for vgpu in scene.vgpus
    ]


def quotas(scene: ClusterScene) -> list[dict[str, Any]]:
    """Each bound of each quota, with the amount that the namespace's pods and claims hold."""
    bounds = []
    for quota in (quota for quota in scene.quotas if scene.here(quota)):
        used = scene.ledger.cluster.usage(quota.metadata.namespace)
        for bound in (bound for bound in quotas_of(quota) if not bound.forbids):
            held_milli, held_mib = bound.counted(used)
            bounds.append(
                {
                    "namespace": quota.metadata.namespace,
                    "name": quota.metadata.name,
                    "model": bound.model,
                    "held_milli": held_milli,
                    "nominal_milli": bound.nominal[0],
                    "max_milli": bound.milli,
                    "held_mib": held_mib,
                    "nominal_mib": bound.nominal[1],
                    "max_mib": bound.memory_mib,
                    "cohort": bound.cohort,
                }
            )
    return bounds


def table_of(kind: str, facts: Sequence[dict[str, Any]], scene: ClusterScene, *, wide: bool) -> Table:
    """The facts of a kind as rows under their headers; SharePods of all namespaces have theirs in a column."""
    if kind == "gpus":
        head = ["NODE", "GPU", "MODEL", "PROMISED", "MEMORY", "TENANTS", *(["NEAREST", "UUID"] if wide else [])]
        rows = []
        for gpu in facts:
            tenants = [f"{name_of(one)} {format_milli(one['request_milli'])}" for one in gpu["residents"]]
            row = [gpu["node"], str(gpu["index"]), gpu["model"]]
            row += reserved(gpu["free_milli"], gpu["memory_mib"], gpu["free_mib"])
            row += (
                [", ".join(tenants) or "-", nearest(gpu["links"]), gpu["uuid"]] if wide else [str(len(tenants) or "-")]
            )
            rows.append(row)
    elif kind == "vgpus":
        head = ["NAME", "NODE", "PHASE", "REQUESTED", "MODEL", "ATTACHED", "AGE", *(["UUID"] if wide else [])]
        columns = ("name", "node", "phase", "requested", "model")
        rows = [
            [*(v[key] or "-" for key in columns), str(len(v["attached"])), v["age"]]
            + ([v["uuid"] or "-"] if wide else [])
            for v in facts
        ]
    elif kind == "sharepods":
        head = ["NAME", "REQUEST", "LIMIT", "MEMORY", "STATUS", "NODE", "GPU", "AGE"]
        head += ["VGPU", "UUID"] if wide else []
        index = scene.index
        rows = [
            [*(pod[key] or "-" for key in ("name", "request", "limit", "memory", "state", "node"))]
            + [str(index[pod["uuid"]][1]) if pod["uuid"] in index else "-", pod["age"]]
            + ([pod["vgpu"] or "-", pod["uuid"] or "-"] if wide else [])
            for pod in facts
        ]
        if not scene.namespace:
            return [["NAMESPACE", *head], *([pod["namespace"], *row] for pod, row in zip(facts, rows, strict=True))]
    else:
        head = ["NAMESPACE", "NAME", "MODEL", "GPUS", "MEMORY"]
        rows = []
        for bound in facts:
            cells = []
            for part, shown in (("milli", format_milli), ("mib", format_mib)):
                held, most, nominal = (bound[f"{which}_{part}"] for which in ("held", "max", "nominal"))
                lent = "" if nominal in (None, most) else f", {shown(nominal)} nominal"
                cells.append(f"{shown(held)} of {'-' if most is None else shown(most)}{lent}")
            rows.append([bound["namespace"], bound["name"], bound["model"] or "every model", *cells])
    return [head, *rows]
