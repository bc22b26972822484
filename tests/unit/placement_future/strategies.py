"""Random clusters, shapes and histories for the properties of the inner loops."""

import numpy as np
from asking import asking
from hypothesis import strategies as st

from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device
from aliquot.placement.asks import Ask, Shape
from aliquot.placement.cluster import Cluster, NodeSpec, Placement
from aliquot.placement.decide import Decider
from aliquot.placement.kernels import SLOT, TARGET, VISIT, Records
from aliquot.placement.policy import policy

MODELS = ("T4", "V100", "A10")


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    """Requests of every kind, small enough that several fit a node."""
    whole, rest = draw(st.sampled_from([(0, 0), (0, 100), (0, 310), (0, 500), (0, 810), (1, 0), (2, 0), (1, 250)]))
    return asking(
        whole=whole,
        rest_milli=rest,
        gpu_mib=draw(st.sampled_from([0, 0, 0, 1000, 9000])) if whole + rest else 0,
        gpu_mem_ppm=draw(st.sampled_from([0, 0, 333_333])) if rest else 0,
        models=tuple(draw(st.sampled_from([(), (), ("T4",), ("A10", "V100")]))),
        cpu_milli=draw(st.sampled_from([0, 500, 1000, 4001, 16000])),
        memory_mib=draw(st.sampled_from([0, 512, 4096])),
    )


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Up to five nodes of unlike kinds, partly filled by binpack."""
    specs = []
    for i in range(draw(st.integers(1, 5))):
        model, gpus = draw(st.sampled_from(MODELS)), draw(st.sampled_from([0, 1, 2, 4, 9]))
        size = draw(st.sampled_from([8000, 16384]))
        devices = tuple(Device(g, GpuUuid(f"GPU-{i}-{g}"), model, size) for g in range(gpus))
        specs.append(NodeSpec(f"n{i}", devices, draw(st.sampled_from([4000, 32000])), 16384, rank=i))
    cluster = Cluster(specs)
    decider = Decider(cluster, policy("binpack"))
    for number, ask in enumerate(draw(st.lists(asks(), max_size=12))):
        found = decider.decide(ask)
        if isinstance(found, Placement):
            cluster.reserve(f"pod-{number}", found, ask)
    return cluster


@st.composite
def sequences(draw: st.DrawFn) -> Records:
    """Visits [1..3 sequences, 1..70 visits], more than one block of 64 among them."""
    count, length = draw(st.integers(1, 3)), draw(st.sampled_from([1, 5, 64, 70]))
    kinds = draw(st.lists(asks(), min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    rows = []
    for ask in (kinds[i] for i in rng.integers(0, len(kinds), count * length)):
        rows.append((ask.cpu_milli, ask.milli, ask.rest_milli, ask.whole, draw(st.just(0b101 if ask.models else 0xFF))))
    return np.array(rows, dtype=VISIT).reshape(count, length)


@st.composite
def slots(draw: st.DrawFn) -> Records:
    """Up to three kinds of slots with prices."""
    rows = [
        (draw(st.sampled_from([2.0, 4.0])), draw(st.sampled_from([0.0, 3000.0, 16000.0])), 0.0,
         draw(st.sampled_from([0.0, 700.0, 2000.5])), draw(st.sampled_from([1, 7])), 0)
        for _ in range(draw(st.integers(0, 3)))
    ]  # fmt: skip
    return np.array(rows, dtype=SLOT)


@st.composite
def targets(draw: st.DrawFn) -> Records:
    """A target workload of up to six shapes."""
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        num = draw(st.sampled_from([0, 1, 1, 2]))
        milli = 0 if num == 0 else 1000 if num > 1 else draw(st.sampled_from([100, 310, 500, 1000]))
        rows.append((draw(st.sampled_from([500, 8000])), milli, num, draw(st.sampled_from([1, 2, 7])), 0,
                     draw(st.floats(0.01, 0.5))))  # fmt: skip
    return np.array(rows, dtype=TARGET)


def shapes() -> st.SearchStrategy[Shape]:
    """The part of an ask that the loops see."""
    return asks().map(lambda ask: ask.shape)
