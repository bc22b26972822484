"""Facts of a made-up cluster, for tests and for looking at pages: any number of nodes, the same for the same seed.

Nothing of it is measured. `pass_time` changes usage the way a busy cluster does, so that live pages have news.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from aliquot.driver.wiring import topology_of_gpus
from aliquot.model.ids import GpuUuid
from aliquot.model.quantities import MILLI
from aliquot.model.requests import GpuRequest, Slice
from aliquot.placement.read_model import YOURS
from aliquot.status import (
    Event,
    Explanation,
    Gpu,
    History,
    Node,
    Pool,
    QuotaLine,
    Reason,
    Share,
    Standing,
    TopologyFacts,
    Trial,
    Turn,
    Turns,
    Workload,
)
from aliquot.status.gpus import gpu_state, grown, node_sums, vgpu_of
from aliquot.status.history import Counts, readings
from aliquot.status.sensors import Sensors
from aliquot.status.workloads import piece_of, placed
from aliquot.topology import Topology
from aliquot.web.history.file import Limits
from aliquot.web.history.keeping import HistoryRing, LongHistory

MODELS: Final = (("Tesla V100-SXM2-16GB", 16384), ("NVIDIA A100-SXM4-80GB", 81920), ("NVIDIA H100 80GB HBM3", 81559))
_REQUESTS: Final = (100, 200, 250, 300, 500)


class MadeUpFacts:
    """A cluster of `nodes` x `gpus`; about a third of the GPUs whole, half shared, the rest idle."""

    def __init__(
        self,
        nodes: int = 4,
        gpus: int = 8,
        *,
        seed: int = 1,
        title: str = "made up",
        links: Topology | None = None,
    ) -> None:
        """`links` connects the GPUs of each node."""
        self._random = random.Random(seed)
        self.title = title
        self.program = "aliquot"
        self.window_s = 10.0
        self._held_s: float | None = None
        self._links = links
        self.revision = 1
        self._ring = HistoryRing()
        self._gpus = [self._gpu(node, index) for node in range(nodes) for index in range(gpus)]
        self._extra: list[Workload] = []
        self._silent: dict[str, tuple[str, float]] = {}
        self._wall_s = time.time()
        self._counts: dict[tuple[str, str], Counts] = {}
        self.past = LongHistory(None, Limits(), wall=lambda: self._wall_s)

    def pass_time(self, points: int = 1) -> None:
        """Let usage move; each point is 5 s of history, of which the last is now."""
        now_s = time.time()
        for left in reversed(range(points)):
            self._gpus = [self._moved(gpu) for gpu in self._gpus]
            self._ring.add(now_s - left * self._ring.step_s, self._gpus)
        self.revision += 1

    def remember(self, minutes: int) -> None:
        """Let usage move for some minutes that the history has, of which the last one has just ended."""
        end_s = time.time() // 60 * 60
        for n in range(-minutes - 1, 1):
            self._gpus = [self._moved(gpu) for gpu in self._gpus]
            self._wall_s = end_s + n * 60
            self.past.see(self._wall_s, readings(self._gpus, self._counted))
        self._wall_s = time.time()
        self.past.settle()
        self.revision += 1

    def add(self, workload: Workload) -> None:
        """One more workload, such as one with a hostile name."""
        self._extra.append(workload)
        self.revision += 1

    def put(self, uuid: str, share: Share) -> None:
        """One more tenant on a GPU, whatever is free."""
        share = msgspec.structs.replace(share, owner=made_up_owner(share.tenant))
        sums = {"memory_lent_mib": share.memory_lent_mib, "memory_called_mib": share.memory_called_mib}
        self._gpus = [
            msgspec.structs.replace(gpu, shares=[*gpu.shares, share], state="shared", **sums)
            if gpu.uuid == uuid
            else gpu
            for gpu in self._gpus
        ]
        self.revision += 1

    @property
    def as_of_s(self) -> float:
        """Now, or the moment at which time stands still."""
        return time.time() if self._held_s is None else self._held_s

    def hold(self, at_s: float | None) -> None:
        """From now on no reading is newer than this moment; None: they are new again."""
        self._held_s = at_s

    def hand_to(self, uuid: str, tenant: str) -> None:
        """A tenant holds the token of a GPU from now on."""
        self._gpus = [msgspec.structs.replace(gpu, holder=tenant) if gpu.uuid == uuid else gpu for gpu in self._gpus]
        self.revision += 1

    def fail(self, uuid: str) -> None:
        """A GPU is unhealthy from now on."""
        self._gpus = [msgspec.structs.replace(gpu, healthy=False) if gpu.uuid == uuid else gpu for gpu in self._gpus]
        self.revision += 1

    def sense(self, uuid: str, sensors: Sensors) -> None:
        """A GPU's temperature, power and clocks are these."""
        self._gpus = [msgspec.structs.replace(gpu, sensors=sensors) if gpu.uuid == uuid else gpu for gpu in self._gpus]
        self.revision += 1

    def silence(self, node: str, why: str, since_s: float = 0.0) -> None:
        """From now on a node's use is not known."""
        self._silent[node] = (why, since_s)
        self._gpus = [
            msgspec.structs.replace(gpu, measured=False, busy_milli=0) if gpu.node == node else gpu
            for gpu in self._gpus
        ]
        self.revision += 1

    def forget(self) -> None:
        """From now on the history is not known."""
        self._ring = HistoryRing()
        self.revision += 1

    def gpus(self) -> Sequence[Gpu]:
        """See `StatusSource`."""
        return self._gpus

    def workloads(self) -> Sequence[Workload]:
        """See `StatusSource`; a tenth as many wait as run."""
        shares = [(gpu, share) for gpu in self._gpus for share in gpu.shares]
        running = [placed(share.tenant, [(gpu, share)], Standing("SharePod", age_s=4000.0)) for gpu, share in shares]
        waiting = [
            Workload(f"batch/wait-{n}", "Pod", "Pending", 2000, 2000, [], 60.0 * n, message="no node has two idle GPUs")
            for n in range(len(running) // 10)
        ]
        return [*self._extra, *waiting, *sorted(running, key=lambda workload: workload.name)]

    def nodes(self) -> Sequence[Node]:
        """See `StatusSource`."""
        found = []
        for node in node_sums(self._gpus):
            why, since_s = self._silent.get(node.name, ("", 0.0))
            found.append(msgspec.structs.replace(node, silent=why, silent_since_s=since_s))
        return found

    def topology(self, node: str) -> TopologyFacts | None:
        """See `StatusSource`; of every node the same."""
        own = [gpu for gpu in self._gpus if gpu.node == node]
        return topology_of_gpus(node, self._links, own) if own and self._links else None

    def pool(self) -> Pool:
        """See `StatusSource`: every shared GPU is one."""
        shared = [gpu for gpu in self._gpus if gpu.state == "shared"]
        return Pool("hybrid", [vgpu_of(gpu, gpu.vgpu or f"full-{gpu.node}-{gpu.index}") for gpu in shared])

    def quota(self) -> Sequence[QuotaLine]:
        """See `StatusSource`."""
        return [
            QuotaLine(namespace, model, 1500, 8192, hard_milli=4000, hard_mib=65536)
            for namespace in ("research", "web")
            for model, _ in MODELS
        ]

    def events(self, since: int) -> Sequence[Event]:
        """See `StatusSource`."""
        kept = [Event(n, 1_700_000_000.0 + n, "sharepod", f"research/t-{n}", "placed") for n in range(1, 6)]
        return [event for event in kept if event.id > since]

    def history(self, gpu: str, seconds: float) -> History | None:
        """See `StatusSource`."""
        return self._ring.read(gpu, seconds) if any(gpu == known.uuid for known in self._gpus) else None

    def explain(self, name: str) -> Explanation | None:
        """See `StatusSource`."""
        if all(name != workload.name for workload in self.workloads()):
            return None
        ways = ["Nearest: ask 0.10 GPU less, and it fits on n.", "Or: after batch/one has ended it fits on n."]
        return Explanation(
            name, f"{name} is made up.", reasons=[Reason("9 nodes", "have no V100", lasting=True)], ways=ways
        )

    def try_request(self, request: GpuRequest) -> Trial:
        """See `StatusSource`: the first GPU with enough free."""
        for gpu in self._gpus:
            if gpu.free_milli >= request.request_milli:
                part = Slice(GpuUuid(gpu.uuid), request.request_milli, request.ceiling_milli, 1024)
                piece, after = piece_of(gpu, part), grown(gpu, YOURS, part)
                return Trial(True, f"It fits on GPU {gpu.index} of {gpu.node}.", "made up", [piece], [gpu], [after])
        return Trial(False, "It would wait.", "made up", reasons=[Reason("all nodes", "are full")])

    def _gpu(self, node: int, index: int) -> Gpu:
        model, memory_mib = MODELS[node % len(MODELS)]
        uuid = f"GPU-{node:08x}-{index:04x}-0000-0000-000000000000"
        shares = self._shares(node, index, memory_mib)
        promised = sum(share.request_milli for share in shares)
        return Gpu(
            uuid=uuid,
            index=index,
            node=f"node-{node:03d}",
            model=model,
            memory_mib=memory_mib,
            state=gpu_state([share.request_milli for share in shares]),
            free_milli=MILLI - promised,
            free_mib=memory_mib - sum(share.memory_mib for share in shares),
            busy_milli=min(MILLI, sum(share.usage_milli for share in shares)),
            memory_used_mib=sum(share.memory_used_mib for share in shares),
            shares=shares,
            vgpu=f"vgpu-{node}-{index}" if shares and promised < MILLI else "",
        )

    def _shares(self, node: int, index: int, memory_mib: int) -> list[Share]:
        kind = self._random.random()
        if kind < 0.15:
            return []
        if kind < 0.5:
            return [self._share(f"research/whole-{node}-{index}", MILLI, memory_mib)]
        shares, left = [], MILLI
        for number in range(self._random.randint(1, 4)):
            request = self._random.choice(_REQUESTS)
            if request <= left:
                name = f"web/part-{node}-{index}-{number}"
                shares.append(self._share(name, request, memory_mib * request // MILLI))
                left -= request
        return shares

    def _share(self, name: str, request_milli: int, memory_mib: int) -> Share:
        kept = self._random.choice((100.0, 100.0, 100.0, 99.2, 97.0))
        return Share(
            tenant=name,
            workload=name,
            owner=made_up_owner(name),
            request_milli=request_milli,
            limit_milli=min(MILLI, request_milli * 2),
            usage_milli=self._random.randint(0, request_milli),
            memory_mib=memory_mib,
            memory_used_mib=memory_mib * self._random.randint(1, 9) // 10,
            wait_ms=float(self._random.randint(0, 200)),
            quota_ms=100.0,
            processes=1,
            kept_percent=kept,
            windows=360,
        )

    def _counted(self, gpu: Gpu, share: Share) -> Counts:
        """A minute more of what the tenant uses now; it waits for a tenth of the time."""
        held = self._counts.get((gpu.uuid, share.tenant), Counts(0, 0, 0, 0, 0))
        used_ns = share.usage_milli * 60_000_000
        more = Counts(
            held.charged_ns + used_ns,
            held.waited_ns + 6_000_000_000,
            held.windows + 240,
            held.kept + 239,
            held.handovers + 100,
        )
        self._counts[gpu.uuid, share.tenant] = more
        return more

    def turns(self, gpu: str) -> Turns:
        """Its tenants in turn, 100 ms each, for the minute up to now."""
        names = [share.tenant for known in self._gpus if known.uuid == gpu for share in known.shares]
        now_s = time.time()
        ends = [now_s - 60 + n / 10 for n in range(1, 600)] if names else []
        turns = [Turn(names[n % len(names)], end - 0.1, end) for n, end in enumerate(ends)]
        return Turns(gpu, now_s - 60, now_s, now_s - 60, turns)

    def _moved(self, gpu: Gpu) -> Gpu:
        shares = [
            msgspec.structs.replace(
                share, usage_milli=max(0, min(share.limit_milli, share.usage_milli + self._random.randint(-60, 60)))
            )
            for share in gpu.shares
        ]
        busy = sum(share.usage_milli for share in shares)
        if busy > MILLI:  # no GPU is used for more than all of its time
            shares = [msgspec.structs.replace(share, usage_milli=share.usage_milli * MILLI // busy) for share in shares]
            busy = sum(share.usage_milli for share in shares)
        return msgspec.structs.replace(gpu, shares=shares, busy_milli=busy)


def made_up_owner(tenant: str) -> str:
    """Tenants of one node are of one Deployment."""
    return f"Deployment/{tenant.split('/')[1].rsplit('-', 1)[0]}"
