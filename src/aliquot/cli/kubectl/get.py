"""`kubectl aliquot get|top|inspect`: what there is and who has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import click

from aliquot.cli.kubectl import facts
from aliquot.cli.kubectl.printing import form_option, show, table, target_options
from aliquot.cli.kubectl.scene import Scene, Target, read_scene
from aliquot.cli.kubectl.usage import key, read_usage
from aliquot.model.errors import UserError
from aliquot.model.quantities import MILLI, format_mib, format_milli

KINDS: Final = ("gpus", "sharepods", "vgpus", "quota")
ALIASES: Final = {"gpu": "gpus", "sharepod": "sharepods", "shp": "sharepods", "vgpu": "vgpus", "vg": "vgpus"}
ALIASES_OF_QUOTA: Final = ("quotas", "gpuquota", "gpuquotas", "gq")
NEEDS: Final = {"sharepods": "sharepods", "vgpus": "vgpus", "quota": "gpuquotas"}
BAR: Final = 20


@click.command()
@click.argument("what", metavar="gpus|sharepods|vgpus|quota")
@click.argument("name", required=False, default="")
@target_options
@form_option
def get(what: str, name: str, target: Target, form: str) -> None:
    """List gpus, sharepods, vgpus or quota; with NAME only that one (of gpus: those of that node)."""
    kind = "quota" if what in ALIASES_OF_QUOTA else ALIASES.get(what, what)
    if kind not in KINDS:
        raise UserError(f'"{what}" is not listed here; list {", ".join(KINDS)}, and other kinds with kubectl get')
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
    show(form, told, lambda: _rows(kind, told, scene, wide=form == "wide"))


def _rows(kind: str, told: list[dict[str, Any]], scene: Scene, *, wide: bool) -> Iterable[str]:
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
    head = ["NODE", "GPU", "MODEL", "REQUESTED", "MEMORY", "TENANTS"]
    rows = [
        [g["node"], str(g["index"]), g["model"], *facts.reserved(g), str(len(g["residents"]) or "-")]
        + ([facts.nearest(g), g["uuid"]] if wide else [])
        for g in told
    ]
    return table(head + (["NEAREST", "UUID"] if wide else []), rows)


def _sharepod_rows(told: list[dict[str, Any]], scene: Scene, *, wide: bool) -> Iterable[str]:
    head = ["NAME", "REQUEST", "LIMIT", "MEMORY", "PHASE", "NODE", "GPU", "AGE"]
    index = scene.index
    rows = [
        [p["name"], p["request"] or "-", p["limit"] or "-", p["memory"] or "-", p["phase"], p["node"] or "-"]
        + [str(index[p["uuid"]][1]) if p["uuid"] in index else "-", p["age"]]
        + ([p["vgpu"] or "-", p["uuid"] or "-"] if wide else [])
        for p in told
    ]
    head += ["VGPU", "UUID"] if wide else []
    return table(head, rows) if scene.namespace else _with_namespace(head, rows, told)


def _vgpu_rows(told: list[dict[str, Any]], *, wide: bool) -> Iterable[str]:
    head = ["NAME", "NODE", "PHASE", "REQUESTED", "MODEL", "ATTACHED", "AGE"] + (["UUID"] if wide else [])
    columns = ("name", "node", "phase", "requested", "model")
    rows = [
        [*(v[key] or "-" for key in columns), str(len(v["attached"])), v["age"], *([v["uuid"] or "-"] if wide else [])]
        for v in told
    ]
    return table(head, rows)


def _quota_rows(told: list[dict[str, Any]]) -> Iterable[str]:
    rows = [[q["namespace"], q["name"], q["model"] or "every model", *facts.of_bound(q)] for q in told]
    return table(["NAMESPACE", "NAME", "MODEL", "GPUS", "MEMORY"], rows)


def _with_namespace(head: list[str], rows: list[list[str]], told: list[dict[str, Any]]) -> Iterable[str]:
    return table(["NAMESPACE", *head], [[t["namespace"], *row] for t, row in zip(told, rows, strict=True)])


@click.command()
@click.option("--agent-port", default=5678, show_default=True, help="Where the nodes' agents tell what is used.")
@target_options
@form_option
def top(agent_port: int, target: Target, form: str) -> None:
    """Show who holds how much of the GPUs and what they use of it, the fullest first.

    Every namespace is shown unless -n names one. What is promised is in the pods' plans; what is used is asked of the
    nodes' agents, and is "-" where none answers.
    """
    scene = target.run(read_scene(target))
    used = target.run(read_usage(target, scene, agent_port))
    told = sorted(facts.gpus(scene), key=lambda g: (g["free_milli"], g["node"], g["index"]))
    only = "" if target.everywhere else target.namespace
    for gpu in told:
        for one in gpu["residents"]:
            usage, mib = used.of.get(key(gpu["uuid"], one["tenant"]), (None, None))
            one |= {"usage": usage, "memory_used_mib": mib}
    shown = [
        {**g, "residents": mine}
        for g in told
        if (mine := [r for r in g["residents"] if not only or r["tenant"].startswith(f"{only}/")]) or not only
    ]
    show(form, shown, lambda: _top_lines(shown, told, used.silent))


def _top_lines(shown: list[dict[str, Any]], everything: list[dict[str, Any]], silent: dict[str, str]) -> Iterable[str]:
    promised = sum(MILLI - g["free_milli"] for g in everything)
    idle = sum(g["free_milli"] == MILLI for g in everything)
    yield f"{len(everything)} GPUs, {format_milli(promised)} of them promised, {idle} wholly free"
    for g in shown:
        if not g["residents"]:
            continue
        yield ""
        yield f"{g['node']} GPU {g['index']}  {g['model']}  {facts.reserved(g)[0]}  memory {facts.reserved(g)[1]}"
        head = ["  TENANT", "REQUEST", "LIMIT", "OF THE GPU".ljust(BAR), "USAGE", "MEMORY", "USED"]
        yield from table(head, [_top_row(r) for r in g["residents"]], right=(1, 2, 4, 5, 6))
    for node, why in sorted(silent.items()):
        yield f"the agent of {node} tells nothing: {why}"


def _top_row(r: dict[str, Any]) -> list[str]:
    request, limit = r["request_milli"], r["limit_milli"]
    usage = "-" if r["usage"] is None else f"{r['usage']:.2f}"
    used = "-" if r["memory_used_mib"] is None else format_mib(r["memory_used_mib"])
    shares = [format_milli(request), format_milli(limit), _bar(request, limit)]
    return [f"  {r['tenant']}", *shares, usage, format_mib(r["memory_mib"]), used]


def _bar(request_milli: int, limit_milli: int) -> str:
    """Full blocks up to the request, light ones up to the limit."""
    full, most = round(BAR * request_milli / MILLI), round(BAR * limit_milli / MILLI)
    return ("█" * full + "░" * (most - full)).ljust(BAR)
