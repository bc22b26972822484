"""What holds for every machine and every state of it, against plain enumeration."""

from functools import cache
from itertools import combinations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from matrices import SMALL, WHOLE, machine, text_of

from aliquot.topology import BadTopology, Topology, best_set, left_behind, parse_topo, set_cost, singular

LABELS = ["NV1", "NV2", "NV4", "PIX", "PXB", "PHB", "NODE", "SYS"]
STEADY = settings(max_examples=60, deadline=None, derandomize=True)


@st.composite
def meshes(draw, most=7):
    """Any symmetric matrix of up to seven GPUs, often with few labels and two sockets."""
    count = draw(st.integers(1, most))
    labels = draw(st.lists(st.sampled_from(LABELS), min_size=1, max_size=4))
    links = [["X"] * count for _ in range(count)]
    for a, b in combinations(range(count), 2):
        links[a][b] = links[b][a] = draw(st.sampled_from(labels))
    numa = draw(st.lists(st.sampled_from([None, 0, 1]), min_size=count, max_size=count))
    return Topology.of(links, numa=numa)


@st.composite
def states(draw, machines=None):
    """A machine, its free GPUs and a size that fits."""
    topology = draw(meshes() if machines is None else machines)
    free = sorted(draw(st.sets(st.integers(0, topology.count - 1), min_size=1)))
    return topology, free, draw(st.integers(1, len(free)))


def pairing(topology: Topology, free: tuple[int, ...]) -> int:
    """What the cheapest pairing costs, one GPU alone when the number is odd, by trying all."""

    @cache
    def of(left: tuple[int, ...]) -> int:
        if len(left) < 2:
            return 0
        first, rest = left[0], left[1:]
        options = [topology.cost[first][o] + of(tuple(g for g in rest if g != o)) for o in rest]
        return min([*options, of(rest)] if len(left) % 2 else options)

    return of(free)


def behind(topology: Topology, free: tuple[int, ...]) -> tuple[int, ...]:
    """What is left for later jobs, by trying all."""
    nearest = (min(set_cost(topology, s) for s in combinations(free, n)) for n in (4, 8) if n <= len(free))
    return pairing(topology, free), *nearest


@pytest.mark.parametrize("name", SMALL)
def test_the_chosen_set_is_optimal_on_every_real_machine(name):
    """For every set of free GPUs and every size, no set costs less than the chosen one."""
    topology = machine(name)
    for mask in range(1, 1 << topology.count):
        free = [gpu for gpu in range(topology.count) if mask >> gpu & 1]
        for n in range(1, len(free) + 1):
            least = min(set_cost(topology, each) for each in combinations(free, n))
            assert least == set_cost(topology, best_set(topology, free, n)), (free, n)


@given(states())
@STEADY
def test_the_chosen_set_is_the_one_of_plain_enumeration(state):
    """Least cost, then most left behind, then lowest ids: on any mesh the answer is that of trying every set."""
    topology, free, n = state

    def worth(each):
        rest = tuple(gpu for gpu in free if gpu not in each)
        return set_cost(topology, each), behind(topology, rest), each

    assert min(combinations(free, n), key=worth) == best_set(topology, free, n)


@given(states(st.sampled_from(SMALL).map(machine)))
@STEADY
def test_what_is_left_behind_is_that_of_plain_enumeration(state):
    """The cheapest pairing and the nearest four and eight of what is free."""
    topology, free, _ = state

    assert behind(topology, tuple(free)) == left_behind(topology, free)


@given(st.integers(17, 24), st.integers(1, 9), st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_beyond_sixteen_different_gpus_a_set_is_still_good(count, n, random):
    """Where trying all would take too long, the set is one that no exchange of a single GPU makes cheaper."""
    links = [["X"] * count for _ in range(count)]
    for a, b in combinations(range(count), 2):
        links[a][b] = links[b][a] = random.choice(LABELS)
    topology = Topology.of(links)
    chosen = best_set(topology, range(count), n)
    others = [gpu for gpu in range(count) if gpu not in chosen]
    swapped = [{*chosen, into} - {out} for out in chosen for into in others]

    assert n == len(set(chosen))
    assert all(set_cost(topology, chosen) <= set_cost(topology, each) for each in swapped)


@given(states(), st.randoms(use_true_random=False))
@STEADY
def test_numbering_changes_no_cost(state, random):
    """The same machine with its GPUs numbered otherwise gives a set of the same cost."""
    topology, free, n = state
    order = list(range(topology.count))
    random.shuffle(order)
    links = [[topology.links[a][b] for b in order] for a in order]
    other = Topology.of(links, numa=[topology.numa[a] for a in order])
    there = [order.index(gpu) for gpu in free]

    assert set_cost(topology, best_set(topology, free, n)) == set_cost(other, best_set(other, there, n))


@given(states(st.sampled_from(WHOLE).map(machine)), st.data())
@STEADY
def test_a_single_gpu_goes_where_something_is_broken(state, data):
    """On a tree, a single GPU comes from a broken group of siblings as long as one has a free GPU."""
    topology, free, _ = state
    assume(topology.is_tree and topology.count > 1)
    used = [gpu for gpu in range(topology.count) if gpu not in free]
    chosen = singular(topology, free, used)

    def parent(gpu):
        return min((n for n in topology.tree.walk() if n.children and gpu in n.gpus), key=lambda n: len(n.gpus))

    broken = [gpu for gpu in free if set(parent(gpu).gpus) & set(used)]
    assert chosen in (broken or free)


@given(st.sampled_from(WHOLE), st.data())
@STEADY
def test_spoilt_text_is_read_or_refused_in_one_line(name, data):
    """Whatever is cut, doubled or swapped in a matrix, the answer is a topology or one sentence."""
    words = text_of(name).replace("\n", " \n ").split(" ")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(words) - 1))
        action = data.draw(st.sampled_from(["drop", "double", "swap", "cut", "noise"]))
        if action == "drop":
            del words[at : at + data.draw(st.integers(1, 9))]
        elif action == "double":
            words.insert(at, words[at])
        elif action == "swap":
            words[at], words[-1] = words[-1], words[at]
        elif action == "cut":
            words = words[: at + 1]
        else:
            words[at] = data.draw(st.text(max_size=6))
        words = words or [""]
    try:
        topology = parse_topo(" ".join(words))
    except BadTopology as error:
        assert 1 == len(str(error).splitlines())
    else:
        assert topology.links == tuple(zip(*topology.links, strict=True))
