"""The node as text: `/graph`, the tree of GPUs with the tenants of each, and `/usage`, the containers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aliquot.model.quantities import format_milli
from aliquot.node.telling.aliases import by_container
from aliquot.status.nodes import NodeGpu, NodeReport
from aliquot.topology import Topology, TreeNode


def graph(facts: NodeReport, topology: Topology) -> str:
    """Topology and use as text: one line for each topology node, GPU and container."""
    gpus = dict(enumerate(facts.gpus))  # the tree counts places, which are not indices where a GPU is left out
    lines = [f"{facts.node}: {len(facts.gpus)} GPU{'s' if len(facts.gpus) != 1 else ''}, driver {facts.driver or '?'}"]
    if not facts.answers:
        lines.append("The arbiter does not answer: what is used is not known.")
    lines += _tree(topology.tree, gpus, "", "", "")
    return "\n".join(lines) + "\n"


def usage(facts: NodeReport) -> str:
    """One line for each container and GPU, widths by content."""
    head = ("NAMESPACE", "POD", "CONTAINER", "GPU", "REQUEST", "LIMIT", "USAGE", "MEMORY", "THROTTLED", "HAND-OVERS")
    rows: list[Sequence[str]] = [head]
    for owner, uses in sorted(by_container(facts).items(), key=lambda pair: (pair[0].namespace, pair[0].pod)):
        for gpu, use in uses:
            now = use.status
            memory = f"{now.memory_used_mib}/{now.memory_limit_mib} MiB"
            share = [format_milli(now.request_milli), format_milli(now.limit_milli), f"{now.usage:.2f}"]
            last = (f"{now.waited_ns / 1e9:.1f} s", str(now.handovers))
            rows.append((owner.namespace, owner.pod, owner.container, str(gpu.index), *share, memory, *last))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def _tree(node: TreeNode, gpus: dict[int, NodeGpu], first: str, rest: str, mode: str) -> Iterator[str]:
    if node.gpu is not None:
        yield from _gpu(gpus[node.gpu], first, rest)
        return
    yield f"{first}{node.mode or 'GPUs'} (cost {node.level_cost})"
    for child in node.children:
        last = child is node.children[-1]
        yield from _tree(child, gpus, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "), node.mode)


def _gpu(gpu: NodeGpu, first: str, rest: str) -> Iterator[str]:
    state = f"{format_milli(gpu.free_milli)} free, busy {gpu.busy:.0%}"
    state = f"unhealthy: {gpu.unhealthy}" if gpu.unhealthy else state
    yield f"{first}GPU {gpu.index}  {gpu.model}  {state}, memory {gpu.memory_used_mib}/{gpu.memory_mib} MiB"
    for use in gpu.uses:
        now, request = use.status, format_milli(use.status.request_milli)
        yield f"{rest}     {use.owner.tenant}  {request} used {now.usage:.2f}  {now.memory_used_mib} MiB"
