"""What may be removed: by the source that owns it, and by no source that lost its memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.tenancy.removal import TABLE, Answer, Removable, Source, kept_by

THINGS = st.sampled_from(Removable)
ANSWERS = st.dictionaries(st.sampled_from(Source), st.sampled_from(("used", "gone", "silent")))


@given(THINGS, ANSWERS)
def test_only_its_owner_says_that_a_thing_is_gone(what: Removable, said: dict[Source, Answer]):
    """Whatever all others say, a thing stays until its owner says that it is gone."""
    row = TABLE[what]

    free = kept_by(what, said) == ""

    assert free == (said.get(row.owner) == "gone" and "used" not in [said.get(keeper) for keeper in row.keepers])


@given(THINGS, ANSWERS, st.sampled_from(Source))
def test_a_source_outside_the_row_decides_nothing(what: Removable, said: dict[Source, Answer], other: Source):
    """An answer of a source that is neither owner nor keeper changes nothing."""
    row = TABLE[what]
    if other in (row.owner, *row.keepers):
        return

    assert kept_by(what, said) == kept_by(what, {source: a for source, a in said.items() if source is not other})


@pytest.mark.parametrize("what", Removable)
def test_an_owner_that_lost_its_memory_removes_nothing(what: Removable):
    """A source that is unreachable, or was not listed in full, is silent, and silence keeps."""
    everyone_else: dict[Source, Answer] = {source: "gone" for source in Source if source is not TABLE[what].owner}

    assert "does not say yet" in kept_by(what, everyone_else)


def test_an_empty_answer_of_kubelet_takes_no_share():
    """A share stays while the API server has its pod, and while processes of a deleted pod run."""
    forgotten: dict[Source, Answer] = {Source.KUBELET: "gone"}

    assert "the API server" in kept_by(Removable.SHARE, {**forgotten, Source.API: "used"})
    assert "processes" in kept_by(Removable.SHARE, {**forgotten, Source.API: "gone", Source.PROCESSES: "used"})
    assert "" == kept_by(Removable.SHARE, {Source.API: "gone", Source.PROCESSES: "gone"})


def test_a_holder_of_a_gpu_that_the_ledger_does_not_know_stays_while_a_plan_names_it():
    """A node whose inventory is missing or damaged is not a node without tenants."""
    assert "the API server" in kept_by(Removable.HOLDER, {Source.API: "used", Source.LEDGER: "silent"})
    assert "the scheduler's ledger" in kept_by(Removable.HOLDER, {Source.API: "gone", Source.LEDGER: "used"})
