"""The read model: what is known of GPUs, the tenants on them and their nodes at one moment. Pure; above the model."""

from aliquot.status.gpus import Gpu, GpuState, Node, Pool, QuotaLine, Share, Totals, Vgpu
from aliquot.status.history import ControllerUse, HourLine, Hours, Past, Range, Recorder, Timeline, Turn, Turns, Uses
from aliquot.status.rightsize import Recommendations
from aliquot.status.source import Snapshot, SnapshotSource, StatusSource
from aliquot.status.view import NamespacedView, OwnedView
from aliquot.status.workloads import (
    COMPLETED,
    PENDING,
    RUNNING,
    SCHEDULED,
    Event,
    Explanation,
    History,
    Piece,
    Reason,
    Series,
    Standing,
    TopologyFacts,
    TreeNode,
    Trial,
    Workload,
    WorkloadKind,
)
