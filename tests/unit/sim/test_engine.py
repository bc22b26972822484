"""The simulated scheduler: who starts when, against a plain oracle that tries everybody at every event."""

from collections.abc import Sequence

import pytest
from asking import asking
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device, Labels
from aliquot.placement.cluster import Cluster, NodeSpec, Placement
from aliquot.placement.decide import Decider
from aliquot.placement.pool_policy import pool_policy
from aliquot_lab.sim.engine import Discipline, SimSettings, Simulation
from aliquot_lab.sim.kernel import Job, Kernel, Kind, us
from aliquot_lab.sim.policies import made
from aliquot_lab.sim.pool import PoolSettings


def node(name: str, gpus: int, rank: int = 0) -> NodeSpec:
    devices = tuple(Device(index, GpuUuid(f"{name}/{index}"), "V100", 16000) for index in range(gpus))
    return NodeSpec(name, devices, 64_000, 64_000, rank=rank)


def job(name: str, milli: int, at_s: float, for_s: float, **more) -> Job:
    return Job(name, asking(whole=milli // 1000, rest_milli=milli % 1000, **more), us(at_s), us(for_s))


def run(nodes, jobs, policy="binpack", **how):
    return Simulation(nodes, jobs, made(policy), settings=SimSettings(**how)).run()


def starts_s(outcome) -> list[float]:
    return [start / 1e6 for start in outcome.start_us]


def test_events_of_one_moment_make_room_first():
    """At one time departures come before arrivals, and equal kinds in the order of being planned."""
    kernel, seen = Kernel(), []
    kernel.at(5, Kind.ARRIVAL, lambda: seen.append("arrival"))
    kernel.at(5, Kind.DEPARTURE, lambda: seen.append("first departure"))
    kernel.at(5, Kind.DEPARTURE, lambda: seen.append("second departure"))

    kernel.run()

    assert ["first departure", "second departure", "arrival"] == seen


def test_backfill_lets_small_jobs_pass():
    """With backfill a job that fits starts although an earlier one waits; with FIFO it does not."""
    jobs = [job("x", 700, 0, 10), job("large", 1000, 1, 10), job("small", 300, 2, 10)]

    assert [0, 12, 2] == starts_s(run([node("a", 1)], jobs))
    assert [0, 10, 20] == starts_s(run([node("a", 1)], jobs, queue=Discipline.FIFO))


def test_higher_priority_goes_first():
    """Of those that wait the higher priority starts first, then the earlier arrival."""
    jobs = [job("x", 1000, 0, 10), job("low", 1000, 1, 10), job("high", 1000, 2, 10, priority=1)]

    assert [0, 20, 10] == starts_s(run([node("a", 1)], jobs))


def test_a_job_that_never_fits_does_not_wait():
    """A job that even the empty cluster could not hold is counted as impossible, and holds nobody up."""
    outcome = run([node("a", 1)], [job("huge", 3000, 0, 10), job("x", 500, 1, 10)], queue=Discipline.FIFO)

    assert [True, False] == outcome.impossible.tolist()
    assert 1.0 == starts_s(outcome)[1]


def pooled(policy: str, jobs: Sequence[Job], gpus: int = 1):
    """A run on one node where making a vGPU takes 3 s and starting a pod 1 s."""
    return run([node("a", gpus)], jobs, pool=PoolSettings(pool_policy(policy), us(3), us(1)))


def test_on_demand_vgpus_are_made_again_and_reserved_ones_are_not():
    """On demand, an idle vGPU is given back and making another takes time; reserved, it is made once, ahead."""
    jobs = [job("x", 500, 5, 10), job("y", 500, 25, 10)]

    on_demand = pooled("on-demand", jobs)
    reserved = pooled("reservation:1", jobs)

    assert ([9, 29], 2, 0) == (starts_s(on_demand), on_demand.pool["vgpus_created"], on_demand.pool["vgpu_idle_s"])
    assert ([6, 26], 1, 14) == (starts_s(reserved), reserved.pool["vgpus_created"], reserved.pool["vgpu_idle_s"])


@pytest.mark.parametrize(
    ("seconds", "starts", "made", "held_s", "idle_s"), [(5, [9, 34], 2, 33, 5), (12, [9, 31], 1, 36, 11)]
)
def test_hybrid_keeps_an_idle_vgpu_for_its_seconds(
    seconds: int, starts: list[int], made: int, held_s: float, idle_s: float
):
    """It is given back when it has been idle for so long, at that moment, whenever the next pod comes."""
    jobs = [job("x", 500, 5, 10), job("y", 500, 30, 10)]
    outcome = pooled(f"hybrid:{seconds}", jobs)
    pool = outcome.pool

    assert (starts, made) == (starts_s(outcome), pool["vgpus_created"])
    assert (held_s, idle_s) == (pool["vgpu_held_s"], pool["vgpu_idle_s"])


def test_a_ready_vgpu_that_is_taken_is_replaced():
    """Of two GPUs one is ready at the start; when it is taken the other is made ready."""
    outcome = pooled("reservation:1", [job("x", 1000, 5, 10), job("y", 1000, 9, 10)], gpus=2)

    assert ([6, 10], 2) == (starts_s(outcome), outcome.pool["vgpus_created"])


def test_a_vgpu_that_is_being_made_is_waited_for():
    """A pod that comes while the ready vGPU is being made waits for the rest of that time."""
    assert [4] == starts_s(pooled("reservation:1", [job("x", 1000, 1, 10)]))


def test_a_move_makes_room_and_is_counted():
    """With moves, a pod that fits nowhere gets room by moving another one, which goes on undisturbed."""
    nodes = [node("a", 1, 0), node("b", 1, 1)]
    jobs = [job("x", 400, 0, 100), job("y", 600, 0, 10), job("z", 500, 0, 100), job("whole", 1000, 20, 10)]

    still = run(nodes, jobs, "binpack")
    moved = run(nodes, jobs, "binpack", moves=1)

    assert (100, 0) == (starts_s(still)[3], still.moves)
    assert (20, 1) == (starts_s(moved)[3], moved.moves)
    assert still.finish_us[:3].tolist() == moved.finish_us[:3].tolist()


def oracle(nodes: Sequence[NodeSpec], jobs: Sequence[Job], policy: str, fifo: bool) -> list[int | None]:
    """Start times by trying everybody who waits, in order, whenever anything happens."""
    cluster = Cluster(nodes)
    decider = Decider(cluster, made(policy))
    start: dict[int, int] = {}
    arriving, waiting = list(enumerate(jobs)), []
    ends: list[tuple[int, int]] = []
    while arriving or ends:
        now = min([each.arrive_us for _, each in arriving[:1]] + [end for end, _ in ends])
        for entry in sorted(entry for entry in ends if entry[0] == now):
            ends.remove(entry)
            decider.release(jobs[entry[1]].name)
            _try_all(decider, waiting, start, ends, now, fifo)
        while arriving and arriving[0][1].arrive_us == now and not any(end == now for end, _ in ends):
            number, one = arriving.pop(0)
            if waiting and fifo:
                decider.policy.arrived(one.ask.shape)
            elif _try(decider, number, one, start, ends, now, again=False):
                continue
            waiting.append((number, one))
    return [start.get(number) for number in range(len(jobs))]


def _try_all(decider, waiting, start, ends, now, fifo):
    for number, one in sorted(waiting, key=lambda entry: (-entry[1].ask.priority, entry[0])):
        if _try(decider, number, one, start, ends, now, again=True):
            waiting.remove((number, one))
        elif fifo:
            return


def _try(decider, number, one, start, ends, now, *, again: bool) -> bool:
    found = decider.decide(one.ask, again=again)
    if not isinstance(found, Placement):
        return False
    decider.cluster.reserve(one.name, found, one.ask)
    start[number] = now
    ends.append((now + one.service_us, number))
    return True


asks = st.builds(
    asking,
    whole=st.just(0),
    rest_milli=st.sampled_from([200, 300, 500, 700, 900]),
    cpu_milli=st.sampled_from([1000, 30_000]),
    priority=st.integers(0, 1),
    labels=st.sampled_from([Labels()] * 4 + [Labels("a"), Labels("", "n"), Labels("", "", "e")]),
) | st.builds(asking, whole=st.integers(0, 2), cpu_milli=st.sampled_from([1000, 30_000]), priority=st.integers(0, 1))


@given(
    st.lists(st.tuples(asks, st.integers(0, 6), st.integers(1, 9)), min_size=1, max_size=25),
    st.sampled_from(["binpack", "bestfit", "fgd", "kubeshare"]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_retrying_the_changed_node_is_exact(drawn, policy: str, fifo: bool):
    """Jobs start when they would if everybody who waits were tried on every node at every event."""
    nodes, at_us, jobs = [node("a", 2, 0), node("b", 2, 1), node("c", 1, 2)], 0, []
    for number, (ask, gap, service) in enumerate(drawn):
        at_us += gap
        jobs.append(Job(f"{number}", ask, at_us, service))

    seen = run(nodes, jobs, policy, queue=Discipline.FIFO if fifo else Discipline.BACKFILL)

    assert oracle(nodes, jobs, policy, fifo) == [None if start < 0 else start for start in seen.start_us.tolist()]
