"""The read model: what is known of GPUs, the tenants on them and their nodes at one moment. Pure; above the model."""

from aliquot.status.answers import Event, Explanation, History, Reason, Series, TopologyFacts, TreeNode, Trial
from aliquot.status.gpus import Gpu, GpuState, Share
from aliquot.status.history import Past, Range, Recorder, Timeline, Turn, Turns
from aliquot.status.hours import HourLine, Hours
from aliquot.status.rightsize import Recommendations
from aliquot.status.source import Snapshot, SnapshotSource, StatusSource
from aliquot.status.sums import Node, Pool, QuotaLine, Totals, Vgpu
from aliquot.status.uses import ControllerUse, Uses
from aliquot.status.view import NamespacedView, OwnedView
from aliquot.status.workloads import COMPLETED, PENDING, RUNNING, SCHEDULED, Piece, Standing, Workload, WorkloadKind
