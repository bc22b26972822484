"""Names of nodes looked up and written back without becoming strings: the same as a dictionary would say."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.placement.cluster import Cluster
from aliquot.placement.entries import NodeSpec
from aliquot.scheduler.extender.wire import (
    MAX_NAMES,
    BadMessage,
    Names,
    NameTable,
    Numbering,
    host_priorities,
    host_reasons,
)

letters = st.characters(exclude_characters='",\\', exclude_categories=("Cc", "Cs"))
some_names = st.lists(st.text(letters, max_size=20) | st.text("ab", max_size=3), max_size=12)


def compact(names: list[str]) -> bytes:
    """As Go writes it."""
    return json.dumps(names, separators=(",", ":"), ensure_ascii=False).encode()


@settings(max_examples=300, deadline=None)
@given(some_names, some_names)
def test_a_name_has_the_number_that_it_was_given(known: list[str], asked: list[str]):
    """Names of any length and alphabet are found when they are known and only then, as in a dictionary."""
    index = {name: 7 * place for place, name in enumerate(dict.fromkeys(known))}
    asked = asked + known

    assert [index.get(name, -1) for name in asked] == NameTable(index).numbers(Names(compact(asked))).tolist()


def test_names_that_fall_on_one_slot_are_told_apart():
    """Thousands of names that differ in their last letters only are all found; what is nearly one of them is not."""
    names = [f"ip-10-{i // 256}-{i % 256}.eu-central-1.compute.internal" for i in range(5000)]
    table = NameTable({name: place for place, name in enumerate(names)})
    strangers = [f"{name}." for name in names[:500]] + [name[:-1] for name in names[:500]]

    assert list(range(5000)) == table.numbers(Names.of(names)).tolist()
    assert {-1} == set(table.numbers(Names.of(strangers)).tolist())


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.text(letters, max_size=9), st.integers(0, 3)), unique_by=lambda pair: pair[0], max_size=12)
)
def test_answers_are_cut_out_of_the_question(coded: list[tuple[str, int]]):
    """Every name comes back under its code, in lists, with reasons and with scores, as JSON that can be read."""
    names = Names(compact([name for name, _ in coded]))
    groups = names.grouped(np.array([code for _, code in coded], dtype=np.int32))
    reasons = host_reasons((group, f'says "{code}"') for code, group in groups.items())
    scored = msgspec.json.decode(host_priorities((group, code) for code, group in groups.items()))

    for code, group in groups.items():
        assert [name for name, other in coded if other == code] == msgspec.json.decode(b"[" + group + b"]")
    assert {name: f'says "{code}"' for name, code in coded} == msgspec.json.decode(reasons)
    assert dict(coded) == {entry["Host"]: entry["Score"] for entry in scored}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=6) | st.text('",\\[]: \nab', max_size=4), max_size=6), st.booleans(), st.booleans())
def test_a_list_is_read_as_json_is_however_it_is_written(names: list[str], ascii_only: bool, spread: bool):
    """Escapes, blanks and any characters: the names are those that a JSON parser reads, or the list is refused."""
    text = json.dumps(names, ensure_ascii=ascii_only, indent=1 if spread else None).encode(errors="surrogatepass")
    plain = not any(c in '",\\' or c < " " or "\ud800" <= c <= "\udfff" for name in names for c in name)
    try:
        read = Names(text)
    except BadMessage:
        assert not plain
    else:
        assert (names, names) == (read.strings(), [read[place] for place in range(len(read))])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("ab,", max_size=3), max_size=4), st.integers(0, 30), st.sampled_from(b'",[]{}\\:a \x00\xc3'))
def test_one_wrong_byte_is_no_other_list(names: list[str], place: int, byte: int):
    """A list with one byte changed is refused or read as a JSON parser reads it; nothing is made up."""
    text = bytearray(compact(names))
    text[place % len(text)] = byte
    try:
        read = Names(bytes(text)).strings()
    except BadMessage:
        return
    assert json.loads(bytes(text)) == read


def test_a_message_is_as_large_as_a_cluster():
    """Names longer than Kubernetes allows, and more names than any cluster has nodes, are refused before work."""
    assert 253 == len(Names(compact(["a" * 253]))[0])
    with pytest.raises(BadMessage, match="more than 253 bytes"):
        Names(compact(["a" * 254, "b"]))
    with pytest.raises(BadMessage, match="the maximum is"):
        Names(compact(["a"] * (MAX_NAMES + 1)))


BAD = (b"7", b"{}", b"[1]", b'["a",1]', b'["a",["b"]]', b'["\\""]', b'[","]', b'["a\\n"]', b'["\xff"]', b'["a"', b"")


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_list_of_names_is_refused(text: bytes):
    """Other kinds of values, broken text and names that no node can have are refused with a sentence."""
    with pytest.raises(BadMessage, match="NodeNames"):
        Names(text)


def test_nodes_come_and_go():
    """The numbers are those of the cluster as it is when it is asked."""
    cluster = Cluster([NodeSpec("a"), NodeSpec("b")])
    numbering = Numbering(cluster)
    before = numbering(Names.of(["b", "c"])).tolist()
    cluster.remove_node("b")
    cluster.add_node(NodeSpec("c"))

    assert [1, -1] == before
    assert [-1, cluster.index["c"]] == numbering(Names.of(["b", "c"])).tolist()
