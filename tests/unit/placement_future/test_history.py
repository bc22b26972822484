"""What is kept of the arrivals, and for how long."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.placement.asks import Shape
from aliquot.placement.demand import DECAY, ArrivalHistory

SMALL = Shape(rest_milli=200, cpu_milli=500)
ONE = Shape(whole=1, cpu_milli=4000, models=("T4", "V100"))
TASK = Shape(cpu_milli=2000)
SHAPES = (SMALL, ONE, TASK)


def counted(history: ArrivalHistory) -> dict[Shape, int]:
    return {shape: count for _, shape, count in history.counts()}


@settings(deadline=None)
@given(st.lists(st.sampled_from(SHAPES), max_size=40), st.integers(1, 12))
def test_window_holds_the_last_arrivals(arrivals: list[Shape], window: int):
    """Counts and sums are those of the last arrivals in the window, and of nothing else."""
    history = ArrivalHistory(window)
    for shape in arrivals:
        history.arrive(shape)
    last = arrivals[-window:]

    assert {shape: last.count(shape) for shape in set(last)} == counted(history)
    assert sum(shape.milli for shape in last) == history.milli
    assert sum(shape.cpu_milli for shape in last) == history.cpu_milli


@settings(deadline=None)
@given(st.lists(st.sampled_from(SHAPES), max_size=40), st.integers(1, 12))
def test_dump_and_load_give_the_same_history(arrivals: list[Shape], window: int):
    """A history read back from its JSON counts and draws the same and goes on the same."""
    history = ArrivalHistory(window)
    for shape in arrivals:
        history.arrive(shape)
        history.depart(SMALL)
    again = ArrivalHistory.load(json.loads(json.dumps(history.dump())), window)
    for both in (history, again):
        both.arrive(ONE)

    assert counted(history) == counted(again)
    assert history.chi == again.chi
    assert [shape_of(history, n) for n in history.draws(20, 7)] == [shape_of(again, n) for n in again.draws(20, 7)]


def shape_of(history: ArrivalHistory, number: int) -> Shape:
    return next(shape for n, shape, _ in history.counts() if n == number)


def test_draws_are_of_pods_with_gpus_in_their_proportions():
    """CPU-only pods are never drawn; the others about as often as they came."""
    history = ArrivalHistory(1000)
    for number in range(400):
        history.arrive(TASK if number % 2 else SMALL if number % 8 else ONE)
    drawn = [shape_of(history, n) for n in history.draws(1024, 7)]

    assert TASK not in drawn
    assert 0.70 < drawn.count(SMALL) / len(drawn) < 0.80


def test_draws_of_one_seed_are_at_the_same_places():
    """The same seed draws the same shapes as long as nothing arrives."""
    history = ArrivalHistory()
    for shape in (SMALL, ONE, SMALL):
        history.arrive(shape)

    assert history.draws(50, 7).tolist() == history.draws(50, 7).tolist()
    assert history.draws(50, 7).tolist() != history.draws(50, 8).tolist()


def test_chi_is_zero_while_nothing_leaves_and_one_when_a_third_does():
    """Chi says how far departures keep up with arrivals."""
    history = ArrivalHistory()
    for _ in range(50):
        history.arrive(ONE)
    filling = history.chi
    for number in range(4 * DECAY):
        history.arrive(ONE)
        if number % 3 == 0:
            history.depart(ONE)

    assert 0.0 == filling
    assert history.chi > 0.98


def test_shapes_that_never_arrive_are_forgotten():
    """Being asked about a shape costs no memory for ever."""
    history = ArrivalHistory()
    for cpu_milli in range(1000):
        history.number(Shape(cpu_milli=cpu_milli))

    assert len(history.dump()["shapes"]) == 0
    assert len(history._numbers) < 200
