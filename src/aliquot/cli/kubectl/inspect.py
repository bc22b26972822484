"""`kubectl aliquot inspect`: do the scheduler's ledger and the pods' plans agree?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import click

from aliquot.cli.forms import show
from aliquot.cli.kubectl.scene import Target, form_option, read_scene, target_options
from aliquot.cli.kubectl.services import Link, scheduler_option
from aliquot.cli.tables import aligned
from aliquot.model.quantities import MILLI, format_mib, format_milli

Cells = dict[str, tuple[int, int]]
"""UUID -> (milli-GPU, MiB) that are promised."""


@click.command()
@scheduler_option
@target_options
@form_option
def inspect(scheduler: str, target: Target, form: str) -> int:
    """Compare the scheduler's ledger with the pods' plans; exit status 1 where they differ.

    A pod that is being bound is in the ledger before it is in the API server: repeat the check before you act.

    Example, the comparison, for a program:
      kubectl aliquot inspect -o json
    """
    link = Link.of(scheduler)

    async def ask() -> Any:
        async with target.connect() as api:
            return await link.json(api, "/inspect")

    answer = target.run(ask())
    scene = target.run(read_scene(target))
    told = compared(answer, scene.gpus(), scene.ledger.inconsistent)
    show(form, told, lambda: _lines(told))
    return 0 if told["agree"] else 1


def compared(
    answer: dict[str, Any], gpus: list[dict[str, Any]], inconsistent: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Every device with its amounts in the ledger and in the pods' plans; `agree` when they are equal.

    `inconsistent` are the pods, by their UID, whose plans do not fit a ledger that is made of the pods.
    """
    ledger: Cells = {
        d["uuid"]: (MILLI - d["free_milli"], d["memory_mib"] - d["free_mib"])
        for node in answer.get("nodes", [])
        for d in node["devices"]
    }
    where = {d["uuid"]: (node["name"], d["index"]) for node in answer.get("nodes", []) for d in node["devices"]}
    pods: Cells = {g["uuid"]: (MILLI - g["free_milli"], g["memory_mib"] - g["free_mib"]) for g in gpus}
    where |= {g["uuid"]: (g["node"], g["index"]) for g in gpus}
    rows = [
        {
            "node": node,
            "gpu": index,
            "uuid": uuid,
            "scheduler": list(ledger[uuid]) if uuid in ledger else None,
            "pods": list(pods[uuid]) if uuid in pods else None,
            "agree": ledger.get(uuid) == pods.get(uuid),
        }
        for uuid, (node, index) in sorted(where.items(), key=lambda item: item[1])
    ]
    return {
        "agree": all(row["agree"] for row in rows),
        "devices": rows,
        "inconsistent_pods": {"scheduler": answer.get("inconsistent_pods", {}), "pods": dict(inconsistent)},
        "unreadable_nodes": answer.get("unreadable_nodes", {}),
    }


def _lines(told: dict[str, Any]) -> Iterable[str]:
    """The comparison as people read it."""
    differing = [row for row in told["devices"] if not row["agree"]]
    count = len(told["devices"])
    yield (
        f"the scheduler and the pods agree about {count} GPUs"
        if told["agree"]
        else f"the scheduler and the pods differ about {len(differing)} of {count} GPUs"
    )
    rows = [
        [row["node"], str(row["gpu"]), _cell(row["scheduler"]), _cell(row["pods"]), "" if row["agree"] else "differ"]
        for row in told["devices"]
        if not row["agree"] or any((row["pods"] or [0])[:1])
    ]
    if rows:
        yield from aligned([["NODE", "GPU", "IN THE LEDGER", "BY THE PODS", ""], *rows])
    for uid, why in told["inconsistent_pods"]["scheduler"].items():
        yield f"pod {uid} has a plan that is not in the ledger: {why}"
    for node, why in told["unreadable_nodes"].items():
        yield f"node {node} takes no pods: {why}"


def _cell(amount: list[int] | None) -> str:
    return "not known" if amount is None else f"{format_milli(amount[0])}, {format_mib(amount[1])}"
