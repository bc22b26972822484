"""Objects by the words that they name: the same as a look through all of them would find."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.kube.objects import ApiObject, Meta
from aliquot.kube.reflector import Change, Index


def words_of(thing: ApiObject) -> list[str]:
    """Its labels' values, of which one may be there twice and one be empty."""
    return [*thing.metadata.labels.values()]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_an_index_is_a_look_through_all(seed: int):
    """However objects come, change their words and go: each word leads to those that name it now, and no others."""
    chance, index, there = random.Random(seed), Index(words_of), dict[str, ApiObject]()
    for _ in range(30):
        name = chance.choice("abcd")
        old = there.pop(name, None)
        if old is not None and chance.random() < 0.4:
            index.changed(Change("deleted", old, old))
            continue
        labels = {key: chance.choice(["", "x", "y", "z"]) for key in chance.sample("123", chance.randint(0, 3))}
        there[name] = ApiObject(Meta(name=name, namespace="n", labels=labels))
        index.changed(Change("modified" if old else "added", there[name], old))

        for word in ("x", "y", "z"):
            expected = {key for key, thing in there.items() if word in words_of(thing)}
            assert expected == {thing.metadata.name for thing in index.naming(word)}
        assert [] == index.naming("")
