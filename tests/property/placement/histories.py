"""Random clusters and what happens to them: arrivals, departures, node failures, cordons."""

from asking import asking
from hypothesis import strategies as st

from aliquot.model.requests import Device, Labels
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import NodeSpec
from aliquot.topology import Topology

MODELS = ("Tesla V100-SXM2-16GB", "NVIDIA A10", "NVIDIA A100-SXM4-80GB")
PAIRS = Topology.of(
    [["X", "PIX", "SYS", "SYS"], ["PIX", "X", "SYS", "SYS"], ["SYS", "SYS", "X", "NV2"], ["SYS", "SYS", "NV2", "X"]]
)


@st.composite
def nodes(draw, number: int) -> NodeSpec:
    """A node with up to four GPUs, of one model or mixed."""
    count = draw(st.sampled_from((0, 1, 2, 4, 4, 4)))
    mixed = draw(st.integers(0, 4)) == 0
    model = draw(st.sampled_from(MODELS))
    gpus = []
    for g in range(count):
        own = draw(st.sampled_from(MODELS)) if mixed else model
        gpus.append(Device(g, f"GPU-{number}-{g}", own, {MODELS[0]: 16384, MODELS[1]: 23028, MODELS[2]: 81920}[own]))
    topology = PAIRS if count == 4 and draw(st.booleans()) else None
    cpu, rank = draw(st.sampled_from((4000, 64000, 64000))), draw(st.integers(0, 3)) * 100 + number
    return NodeSpec(f"node-{number}", tuple(gpus), cpu, draw(st.sampled_from((16384, 65536, 262144))), topology, rank)


@st.composite
def clusters(draw, most: int = 5) -> list[NodeSpec]:
    """A few nodes."""
    return [draw(nodes(number)) for number in range(draw(st.integers(2, most)))]


PARTS = tuple((0, milli) for milli in (100, 250, 250, 300, 300, 500, 500, 810, 999))
SIZES = (*PARTS, (1, 0), (1, 0), (2, 0), (3, 0), (1, 500), (2, 300), (0, 0))


def rarely(*others: object, times: int = 8) -> st.SearchStrategy:
    """Nothing mostly, one of the others now and then."""
    nothing: object = type(others[0])()
    return st.sampled_from((nothing,) * times + others)


@st.composite
def asks(draw) -> Ask:
    """Any kind of request, the common ones more often."""
    whole, rest = draw(st.sampled_from(SIZES))
    one = whole + (rest > 0) <= 1
    return asking(
        whole,
        rest,
        gpu_mib=draw(rarely(2048, 2048, 12000, 30000)),
        gpu_mem_ppm=draw(rarely(50_000, 300_000, 1_000_000)),
        models=draw(rarely(("V100",), ("A10", "A100"))),
        cpu_milli=draw(st.sampled_from((0, 500, 500, 2000, 9000))),
        memory_mib=draw(rarely(1024, 4096, 20000)),
        gpu_uuid=draw(rarely("GPU-0-0", "GPU-0-1,GPU-1-0", times=20)),
        mixed=draw(rarely(True)),
        gpu_id=draw(rarely("one")) if one else "",
        labels=Labels(draw(rarely("red", "blue")) if one else "", draw(rarely("red", "blue")), draw(rarely("red"))),
    )


def steps(least: int = 20, most: int = 50) -> st.SearchStrategy[list[tuple[str, object]]]:
    """What happens, in order: ("ask", Ask), ("end", n), ("fail", n), ("cordon", n), ("join", n)."""
    asked = st.tuples(st.just("ask"), asks())
    other = st.tuples(
        st.sampled_from(("end", "end", "end", "end", "fail", "cordon", "cordon", "join")), st.integers(0, 50)
    )
    return st.lists(st.one_of(asked, asked, asked, asked, other), min_size=least, max_size=most)
