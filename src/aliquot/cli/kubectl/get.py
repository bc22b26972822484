"""`kubectl aliquot get`: GPUs, SharePods, vGPUs and quotas with their holders, and GPU-hours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import click

from aliquot.cli.forms import Form, form_option, show
from aliquot.cli.hours import CSV, HOURS, HoursView, hours_options, refuse_hours_options
from aliquot.cli.kubectl import facts
from aliquot.cli.kubectl.dashboard import dashboard_options, read_hours
from aliquot.cli.kubectl.options import target_options
from aliquot.cli.kubectl.scene import ClusterScene, Target, read_scene
from aliquot.cli.tables import aligned, nearest
from aliquot.lib.misspelt import closest
from aliquot.model.errors import UserError
from aliquot.model.quantities import format_milli

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
    """
    kind = ALIASES.get(what, what)
    if kind == HOURS:
        if name:
            raise UserError(f'hours have no names, and "{name}" was given; choose a namespace with -n')
        view = HoursView(since, by, form, "" if target.everywhere else target.namespace)
        view.print(target.run(read_hours(target, view.since, dashboard, token)))
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
    told = {"gpus": facts.gpus, "sharepods": facts.sharepods, "vgpus": facts.vgpus, "quota": facts.quotas}[kind](scene)
    if name:
        column = "node" if kind == "gpus" else "name"
        told = [entry for entry in told if entry[column] == name]
        if not told:
            where = f' in namespace "{scene.namespace}"' if kind in ("sharepods", "quota") and scene.namespace else ""
            raise UserError(f'there are no {kind} called "{name}"{where}; list them: kubectl aliquot get {kind}')
    one = bool(name) and kind != "gpus" and len(told) == 1
    picked = form.picked(told, told[0] if one else {"items": told})
    if picked is not None:
        click.echo(picked, nl=False)
    else:
        show(form.word, told[0] if one else told, lambda: _rows(kind, told, scene, wide=form.word == "wide"))


def _rows(kind: str, told: list[dict[str, Any]], scene: ClusterScene, *, wide: bool) -> Iterable[str]:
    if not told:
        where = f' in namespace "{scene.namespace}"' if kind in ("sharepods", "quota") and scene.namespace else ""
        return [f"no {kind}{where}"]
    if kind == "gpus":
        return _gpu_rows(told, wide=wide)
    if kind == "vgpus":
        return _vgpu_rows(told, wide=wide)
    if kind == "sharepods":
        return _sharepod_rows(told, scene, wide=wide)
    return _quota_rows(told)


def _gpu_rows(told: list[dict[str, Any]], *, wide: bool) -> Iterable[str]:
    head = ["NODE", "GPU", "MODEL", "PROMISED", "MEMORY", "TENANTS"]
    rows = [
        [g["node"], str(g["index"]), g["model"], *facts.reserved(g), _tenants(g, wide=wide)]
        + ([nearest(g["links"]), g["uuid"]] if wide else [])
        for g in told
    ]
    return aligned([head + (["NEAREST", "UUID"] if wide else []), *rows])


def _tenants(gpu: dict[str, Any], *, wide: bool) -> str:
    """How many a GPU has, or with what each of them holds."""
    held = [f"{one['tenant']} {format_milli(one['request_milli'])}" for one in gpu["residents"]]
    return (", ".join(held) if wide else str(len(held) or "")) or "-"


def _sharepod_rows(told: list[dict[str, Any]], scene: ClusterScene, *, wide: bool) -> Iterable[str]:
    head = ["NAME", "REQUEST", "LIMIT", "MEMORY", "STATUS", "NODE", "GPU", "AGE"]
    index = scene.index
    rows = [
        [p["name"], p["request"] or "-", p["limit"] or "-", p["memory"] or "-", p["state"], p["node"] or "-"]
        + [str(index[p["uuid"]][1]) if p["uuid"] in index else "-", p["age"]]
        + ([p["vgpu"] or "-", p["uuid"] or "-"] if wide else [])
        for p in told
    ]
    head += ["VGPU", "UUID"] if wide else []
    return aligned([head, *rows]) if scene.namespace else _with_namespace(head, rows, told)


def _vgpu_rows(told: list[dict[str, Any]], *, wide: bool) -> Iterable[str]:
    head = ["NAME", "NODE", "PHASE", "REQUESTED", "MODEL", "ATTACHED", "AGE"] + (["UUID"] if wide else [])
    columns = ("name", "node", "phase", "requested", "model")
    rows = [
        [*(v[key] or "-" for key in columns), str(len(v["attached"])), v["age"], *([v["uuid"] or "-"] if wide else [])]
        for v in told
    ]
    return aligned([head, *rows])


def _quota_rows(told: list[dict[str, Any]]) -> Iterable[str]:
    rows = [[q["namespace"], q["name"], q["model"] or "every model", *facts.of_bound(q)] for q in told]
    return aligned([["NAMESPACE", "NAME", "MODEL", "GPUS", "MEMORY"], *rows])


def _with_namespace(head: list[str], rows: list[list[str]], told: list[dict[str, Any]]) -> Iterable[str]:
    return aligned([["NAMESPACE", *head], *([t["namespace"], *row] for t, row in zip(told, rows, strict=True))])
