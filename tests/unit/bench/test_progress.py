"""The counts a client leaves for others to read."""

from aliquot_lab.bench.progress import RING, Interval, ProgressWriter, read_intervals, read_totals


def test_a_client_that_has_launched_nothing_has_no_totals(tmp_path):
    """No file, and a file before the first kernel, are both "not ready"."""
    path = tmp_path / "p"
    assert read_totals(path) is None

    ProgressWriter(path).store()

    assert read_totals(path) is None


def test_counts_are_visible_once_stored(tmp_path):
    """What the client stored is what others read."""
    writer = ProgressWriter(tmp_path / "p")
    writer.completed, writer.kernel_ns = 3, 6000
    writer.ready()

    totals = read_totals(tmp_path / "p")

    assert totals is not None
    assert (totals.completed, totals.kernel_ns) == (3, 6000)


def test_the_ring_keeps_the_last_turns_in_order(tmp_path):
    """A full ring forgets the oldest."""
    writer = ProgressWriter(tmp_path / "p")
    for number in range(RING + 2):
        writer.interval(number, number, number)
    writer.ready()

    turns = read_intervals(tmp_path / "p")

    assert len(turns) == RING
    assert (Interval(2, 2, 2), Interval(RING + 1, RING + 1, RING + 1)) == (turns[0], turns[-1])
