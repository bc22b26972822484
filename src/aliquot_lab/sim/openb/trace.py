"""The trace's two tables: nodes (`sn, cpu_milli, memory_mib, gpu, model`) and pods (`name, cpu_milli, memory_mib,
num_gpu, gpu_milli, gpu_spec, ..., creation_time, deletion_time, scheduled_time`).

`gpu_milli` is per GPU and ignored when `num_gpu` is 0; `gpu_spec` lists allowed models joined by `|`, empty for any.
Times are seconds from the start of the trace; the `multigpu` tables have none.

Source: Alibaba openb trace as published with FGD (USENIX ATC'23), Apache-2.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aliquot.model.ids import GpuUuid
from aliquot.model.quantities import MILLI
from aliquot.model.requests import Device, GpuRequest
from aliquot.placement.asks import Ask, Shape
from aliquot.placement.cluster import NodeSpec
from aliquot_lab.sim.tables import BadTable, TableRow, read_rows

NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
MAX_GPUS: Final = 64
# MiB of the models that are public; the trace has no GPU memory, so this never decides anything in a replay of it.
MODEL_MIB: Final = {"T4": 15360, "P100": 16280, "V100M16": 16160, "V100M32": 32510, "A10": 23028}
OTHER_MODEL_MIB: Final = 40960


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One machine of the cluster."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class PodRow:
    """One task: `num_gpu` GPUs of `gpu_milli` each. Times are None where the trace has none.

    `models` are as written, repetitions included: the benchmark's target workload counts tasks by the text.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    num_gpu: int
    gpu_milli: int
    models: tuple[str, ...]
    created_s: float | None = None
    scheduled_s: float | None = None
    deleted_s: float | None = None

    @property
    def total_milli(self) -> int:
        """Milli-GPU of all its GPUs."""
        return self.num_gpu * self.gpu_milli

    def ask(self) -> Ask:
        """The same request as the placement core reads it."""
        shape = self.shape()
        return Ask(GpuRequest(shape.milli, model="|".join(shape.models)), shape.cpu_milli, shape.memory_mib)

    def shape(self) -> Shape:
        """What scores depend on, models as the trace writes them."""
        whole = self.num_gpu if self.gpu_milli == MILLI else 0
        rest = 0 if whole or not self.num_gpu else self.gpu_milli
        return Shape(whole, rest, models=self.models, cpu_milli=self.cpu_milli, memory_mib=self.memory_mib)


def read_nodes(path: Path) -> list[TraceNode]:
    """The nodes, those without a GPU too, in the order of the file.

    Raises:
        BadTable: a broken table, a name twice, or a cluster without any GPU.
    """
    nodes: list[TraceNode] = []
    seen: set[str] = set()
    for row in read_rows(path, NODE_COLUMNS):
        name = row.text("sn")
        if not name or name in seen:
            raise row.fault("sn", "is empty or appears twice; every node needs a name of its own")
        seen.add(name)
        gpus = row.integer("gpu", most=MAX_GPUS)
        if gpus and not row.text("model"):
            raise row.fault("model", f"is empty on a node with {gpus} GPUs")
        cpu, memory = row.integer("cpu_milli"), row.integer("memory_mib")
        nodes.append(TraceNode(name, cpu, memory, gpus, row.text("model")))
    if not any(node.gpus for node in nodes):
        raise BadTable(f"{path}: no node has a GPU; the column gpu of at least one line must be above 0")
    return nodes


def read_pods(path: Path) -> list[PodRow]:
    """The tasks, in the order of the file.

    Raises:
        BadTable: a broken table, or one in which no task asks for a GPU.
    """
    pods = [_pod(row) for row in read_rows(path, POD_COLUMNS)]
    if not any(pod.total_milli for pod in pods):
        raise BadTable(f"{path}: no task asks for a GPU; the column num_gpu of at least one line must be above 0")
    return pods


def _pod(row: TableRow) -> PodRow:
    name = row.text("name")
    if not name:
        raise row.fault("name", "is empty; every task needs a name")
    num_gpu = row.integer("num_gpu", most=MAX_GPUS)
    milli = row.integer("gpu_milli", most=MILLI) if num_gpu else 0
    if num_gpu and milli == 0:
        raise row.fault("gpu_milli", f"asks for nothing of {num_gpu} GPUs; allowed are 1 to {MILLI}")
    if num_gpu > 1 and milli != MILLI:
        raise row.fault("gpu_milli", f"is a part of each of {num_gpu} GPUs; more than one GPU is asked whole ({MILLI})")
    models = tuple(model for model in row.text("gpu_spec").split("|") if model) if num_gpu else ()
    return PodRow(
        name,
        row.integer("cpu_milli"),
        row.integer("memory_mib"),
        num_gpu,
        milli,
        models,
        *(_time(row, column) for column in ("creation_time", "scheduled_time", "deletion_time")),
    )


def _time(row: TableRow, column: str) -> float | None:
    return row.number(column) if row.text(column) else None


def workload_name(path: Path) -> str:
    """The file's name without folder and ending, as the published tables call the workload."""
    return path.name.removesuffix(".gz").removesuffix(".csv")


def node_specs(nodes: Sequence[TraceNode], ranks: Sequence[int] | None = None) -> list[NodeSpec]:
    """The nodes as the placement core reads them; without ranks the order of the file is the order of preference."""
    specs = []
    for position, node in enumerate(nodes):
        mib = MODEL_MIB.get(node.model, OTHER_MODEL_MIB)
        gpus = tuple(Device(i, GpuUuid(f"{node.name}/{i}"), node.model, mib) for i in range(node.gpus))
        rank = position if ranks is None else ranks[position]
        specs.append(NodeSpec(node.name, gpus, node.cpu_milli, node.memory_mib, rank=rank))
    return specs
