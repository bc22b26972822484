"""What was learned as a text: it comes back whole, or not at all."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from asking import asking
from conftest import Feed, cluster_of
from hypothesis import given
from hypothesis import strategies as st

from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster
from aliquot.placement.decide import Decider
from aliquot.placement.policies.aliquot import Aliquot
from aliquot.placement.policies.binpack import Binpack
from aliquot.placement.policy import MAX_BYTES, BadMemory, pack, unpack

KINDS = (*(asking(rest_milli=milli, cpu_milli=1000) for milli in (160, 370, 470, 810)), asking(whole=2))


class Fragile(Binpack):
    """A policy from outside that trips over what it reads."""

    def dump(self, part: float = 1.0) -> Mapping[str, Any]:
        return {}

    def load(self, record: Mapping[str, Any]) -> None:
        raise ZeroDivisionError("one of its own")


def taught(*asks: Ask) -> Aliquot:
    """A policy that has seen these arrive."""
    policy = Aliquot()
    decider = Decider(cluster_of(("V100", 8, 96000), ("V100", 8, 96000)), policy)
    feed = Feed(decider)
    for ask in asks or KINDS * 8:
        feed(ask)
    return policy


TEXT = pack(taught())


def test_a_policy_goes_on_from_the_text_of_another():
    """What is packed again after it was unpacked is the same text."""
    new = taught(KINDS[0])

    unpack(new, TEXT)

    assert TEXT == pack(new)


@given(at=st.integers(0, len(TEXT) - 1), bit=st.integers(0, 6))
def test_any_bit_that_is_turned_is_seen(at: int, bit: int):
    """A damaged text is refused and the policy stays as it was, or what it says has not changed."""
    policy = taught(KINDS[0])
    before = pack(policy)
    broken = TEXT[:at] + chr(ord(TEXT[at]) ^ 1 << bit) + TEXT[at + 1 :]

    try:
        unpack(policy, broken)
    except BadMemory:
        assert before == pack(policy)
    else:
        assert TEXT == pack(policy)


@given(length=st.integers(0, len(TEXT) - 2))
def test_a_text_that_was_cut_off_is_refused(length: int):
    """Half a file is no file."""
    with pytest.raises(BadMemory):
        unpack(taught(KINDS[0]), TEXT[:length])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (TEXT.replace('"version": 1', '"version": 2', 1), "of version 2, this program reads version 1"),
        (TEXT.replace('"aliquot"', '"fgd"', 1), 'of the policy "fgd"'),
        ("[" * 100_000, "is not a header"),
        ("x" * (MAX_BYTES + 1), "are the most"),
        ("", "is not a header"),
    ],
)
def test_what_is_not_ours_is_told(text: str, told: str):
    """Another version, another policy, and what is not a text of ours at all are refused with the reason."""
    with pytest.raises(BadMemory, match=told):
        unpack(taught(KINDS[0]), text)


@pytest.mark.parametrize(
    "change",
    [
        {"recent": [-1]},
        {"recent": [10**9]},
        {"recent": [0.5]},
        {"recent": None},
        {"arrived_milli": "much"},
        {"departed_milli": float("nan")},
        {"shapes": [{"whole": 10**30}]},
        {"shapes": ["V100"]},
    ],
)
def test_a_record_with_what_no_arrival_can_have_is_refused(change: dict[str, object]):
    """A checksum does not make sense of nonsense: the policy looks at every number itself."""
    policy = taught(KINDS[0])
    before = policy.dump()

    with pytest.raises(BadMemory, match="not a history of arrivals"):
        policy.load({**taught().dump(), **change})
    assert before == policy.dump()


def test_shapes_of_negative_or_impossible_size_are_refused():
    """The rules for an ask hold for the shapes that are read, too."""
    for field, value in (("cpu_milli", -1), ("rest_milli", 1000), ("models", "V100"), ("models", [3]), ("whole", True)):
        record = taught().dump()
        record["shapes"][0][field] = value
        with pytest.raises(BadMemory):
            taught(KINDS[0]).load(record)


def test_a_window_of_many_large_shapes_keeps_its_latest_part():
    """The text never grows beyond its bound; what is left out are the oldest arrivals."""
    names = tuple(f"{'very-long-name-of-a-model' * 8}-{i}" for i in range(8))
    asks = [asking(rest_milli=1 + i % 999, cpu_milli=i, models=names) for i in range(3000)]
    policy = Aliquot()
    Decider(Cluster(), policy)
    for ask in asks:
        policy.arrived(ask.shape)

    text = pack(policy)
    record = json.loads(text.splitlines()[1])

    assert len(text) <= MAX_BYTES
    assert 100 < len(record["recent"]) < 3000
    assert record["shapes"][record["recent"][-1]]["cpu_milli"] == 2999


def test_policies_of_others_can_stop_nobody():
    """A policy that cannot say what it learned is not kept; one that fails at reading is a refusal like any other."""
    assert "" == pack(Binpack())
    unpack(Binpack(), "whatever")
    with pytest.raises(BadMemory, match="one of its own"):
        unpack(Fragile(), pack(Fragile()))
