"""Resources, annotations and labels, from the docstrings beside their names in `aliquot.kube.names`."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aliquot.kube import names
from aliquot.node.status import labels_of
from reference.markdown import code, page, table

WRITTEN = {
    "gpu-model": "model of its GPUs, in the letters that a label allows; `mixed` where there are several",
    "gpu-model.m": "how many GPUs of that model it has",
    "gpu-count": "how many GPUs it has",
    "gpu-memory-mib": "memory in MiB of its GPU that has least",
    "driver": "version of the NVIDIA driver",
    "topology": "how its GPUs are wired: `nvlink`, `pcie`, or `single` where there is one",
}
"""Labels that a node's agent writes; the words are here because a label in a dictionary has no docstring."""


def documented() -> dict[str, tuple[str, str]]:
    """Name -> (what kind of thing it is, what it says), of every constant with a docstring that begins with a kind."""
    tree = ast.parse(Path(names.__file__).read_text())
    found = {}
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and ": " in str(text):
            value = getattr(names, before.target.id)
            if isinstance(value, str):
                kind, _, words = str(text).partition(": ")
                found[value] = (kind[0].lower() + kind[1:], words.strip().removesuffix("."))
    return found


def page_text() -> str:
    """Every name that Aliquot reads or writes on other kinds of objects."""
    known = documented()
    missing = [name for name in (*names.ASK_ANNOTATIONS, *names.RESOURCES) if name not in known]
    if missing:
        raise SystemExit(f"aliquot.kube.names says nothing of {', '.join(missing)}")
    resources = [(code(name), known[name][1]) for name in names.RESOURCES]
    asking = [(code(name), known[name][1]) for name in names.ASK_ANNOTATIONS]
    others = [
        (code(name), kind, words)
        for name, (kind, words) in known.items()
        if name not in names.ASK_ANNOTATIONS and name not in names.RESOURCES
    ]
    return page(
        "Resources, annotations and labels",
        "How they go together, and what other projects' words mean: [dialects](../dialects.md).",
        "## Resources on containers",
        table(("resource", "what it says"), resources),
        "## Annotations by which a pod asks",
        f"Each may have `.<container>` behind its name and then counts for that container. Any other annotation that "
        f"begins with `{names.PREFIX}` is refused on a new pod. They count until the pod has its node; from then on "
        "its plan decides, and of later changes only [a size](../how-to/change-a-running-share.md) has an effect.",
        table(("annotation", "what it says"), asking),
        "## What Aliquot writes, and labels that it heeds",
        table(("name", "where", "what it says"), others),
        "## Labels on nodes",
        "Written by a node's agent; `--no-node-labels` leaves them.",
        table(("label", "what it says"), _node_labels()),
    )


def _node_labels() -> list[tuple[str, str]]:
    gpu = SimpleNamespace(model="m", memory_mib=1, driver="1")
    machine: Any = SimpleNamespace(gpus=[gpu], topology=SimpleNamespace(links=[["X"]]))
    found = [label.removeprefix(names.PREFIX) for label in labels_of(machine)]
    return [(code(names.PREFIX + name.replace("gpu-model.m", "gpu-model.MODEL")), WRITTEN[name]) for name in found]
