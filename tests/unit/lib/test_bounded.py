"""A dictionary that does not grow for ever."""

from aliquot.lib.bounded import Bounded


def test_one_entry_too_many_drops_the_oldest():
    """Beyond `max_items` the entry that was written longest ago is gone; writing an entry again makes it the newest."""
    kept: Bounded[str, int] = Bounded(2)
    kept |= {"a": 1, "b": 2}
    kept["a"] = 3
    kept.setdefault("c", 4)

    assert {"a": 3, "c": 4} == dict(kept)


def test_reading_refreshes_nothing():
    """An entry that is only read is dropped in its turn."""
    kept: Bounded[str, int] = Bounded(2)
    kept |= {"a": 1, "b": 2}

    assert 1 == kept["a"] == kept.get("a")
    kept["c"] = 3

    assert {"b": 2, "c": 3} == dict(kept)
