"""A tenant's share and memory change at the arbiter while its processes go on."""

import msgspec
import pytest
from waiting import eventually

from aliquot.arbiter.abi import MessageType
from aliquot.arbiter.client import ArbiterError, TenantRecord

MIB = 1 << 20


def sized(record: TenantRecord, **sizes: object) -> TenantRecord:
    """The record with other sizes on each of its GPUs."""
    return msgspec.structs.replace(record, gpus=[msgspec.structs.replace(gpu, **sizes) for gpu in record.gpus])


def test_page_and_status_have_the_new_sizes_at_once(arbiter):
    """After a resize the grant page that a process maps, and the status, have the new request, limit and memory."""
    record = arbiter.tenant("a", 300, 600, memory_mib=100)
    page = arbiter.process("a").pages[0]
    arbiter.admin.resize_tenant(sized(record, request_milli=500, limit_milli=800, memory_mib=200))

    assert (500, 800) == (page.u32("request_milli"), page.u32("limit_milli"))
    assert 200 * MIB == page.u64("memory_limit_bytes")
    seen = arbiter.seen("a")
    assert (500, 800, 200, 0) == (
        seen.request_milli,
        seen.limit_milli,
        seen.memory_limit_mib,
        seen.memory_pending_mib,
    )


def test_a_process_that_grew_may_lease_the_more(arbiter):
    """What did not fit before fits after growth, to the byte."""
    record = arbiter.tenant("a", memory_mib=100)
    process = arbiter.process("a")
    process.reserve(100 * MIB)
    assert 0 == process.reserve(MIB)
    arbiter.admin.resize_tenant(sized(record, memory_mib=150))

    assert 50 * MIB == process.reserve(50 * MIB)
    assert 0 == process.reserve(1)


def test_memory_falls_to_what_is_held_and_follows_as_it_is_freed(arbiter):
    """After a shrink nothing that is held is taken; the limit falls with what is freed, and never rises again."""
    record = arbiter.tenant("a", memory_mib=100)
    process = arbiter.process("a")
    page = process.pages[0]
    process.reserve(90 * MIB)
    arbiter.admin.resize_tenant(sized(record, memory_mib=40))
    assert (90 * MIB, 50) == (page.u64("memory_limit_bytes"), arbiter.seen("a").memory_pending_mib)
    assert 0 == process.reserve(1)

    for freed, left in ((20, 70), (25, 45)):
        process.send(MessageType.RELEASE, a=freed * MIB)
        assert 0 == process.reserve(1)
        assert left * MIB == page.u64("memory_limit_bytes")
    process.send(MessageType.RELEASE, a=10 * MIB)
    assert 5 * MIB == process.reserve(5 * MIB)
    assert (40 * MIB, 0) == (page.u64("memory_limit_bytes"), arbiter.seen("a").memory_pending_mib)


def test_unused_leases_are_asked_back_after_a_shrink(arbiter):
    """A process that may have leased more than it uses sees the demand in its page at once."""
    record = arbiter.tenant("a", memory_mib=1000)
    process = arbiter.process("a")
    page = process.pages[0]
    given = process.reserve(10 * MIB, 200 * MIB)
    before = page.u32("memory_demand")
    arbiter.admin.resize_tenant(sized(record, memory_mib=50))
    assert before + 1 == page.u32("memory_demand")

    process.send(MessageType.RELEASE, a=given - 10 * MIB, b=before + 1)
    eventually(lambda: arbiter.seen("a").memory_pending_mib == 0)
    assert 40 * MIB == process.reserve(40 * MIB)


def test_growth_while_memory_is_pending_ends_that(arbiter):
    """A tenant that grows again before it has freed all has the new memory, and nothing is pending."""
    record = arbiter.tenant("a", memory_mib=100)
    process = arbiter.process("a")
    process.reserve(90 * MIB)
    arbiter.admin.resize_tenant(sized(record, memory_mib=40))
    arbiter.admin.resize_tenant(sized(record, memory_mib=120))

    assert (120 * MIB, 0) == (process.pages[0].u64("memory_limit_bytes"), arbiter.seen("a").memory_pending_mib)
    assert 30 * MIB == process.reserve(30 * MIB)


def test_a_grant_goes_on_through_a_resize(arbiter):
    """A process that holds the token keeps it, with its epoch, while its share changes."""
    record = arbiter.tenant("a")
    process = arbiter.process("a")
    epoch = process.hold()
    arbiter.admin.resize_tenant(sized(record, request_milli=100, limit_milli=1000))

    assert process.pages[0].valid
    assert epoch == process.pages[0].epoch


def test_a_new_arbiter_has_the_new_sizes(arbiter):
    """An arbiter that is killed right after its answer is followed by one with the new record, with what is pending."""
    record = arbiter.tenant("a", 300, 600, memory_mib=100)
    arbiter.holder(90)
    arbiter.admin.resize_tenant(sized(record, request_milli=500, limit_milli=800, memory_mib=40))
    arbiter.kill()
    arbiter.start()

    seen = arbiter.seen("a")
    assert (500, 800, 40, 50) == (
        seen.request_milli,
        seen.limit_milli,
        seen.memory_limit_mib,
        seen.memory_pending_mib,
    )
    assert 90 * MIB == arbiter.process("a").pages[0].u64("memory_limit_bytes")


def test_a_resize_that_cannot_be_written_changes_nothing(arbiter):
    """Where the tenants' file cannot be written, the resize is refused, and the tenant is as it was."""
    record = arbiter.tenant("a", memory_mib=100)
    page = arbiter.process("a").pages[0]
    file = arbiter.directory / "tenants.json"
    file.unlink()
    file.mkdir()
    with pytest.raises(ArbiterError):
        arbiter.admin.resize_tenant(sized(record, request_milli=500, memory_mib=40))
    file.rmdir()

    assert (300, 100 * MIB) == (page.u32("request_milli"), page.u64("memory_limit_bytes"))
    assert 300 == arbiter.seen("a").request_milli


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r, _: msgspec.structs.replace(r, name="b"), "no tenant 'b'"),
        (lambda r, _: msgspec.structs.replace(r, socket="/tmp/elsewhere.sock"), "keeps its socket"),
        (lambda r, _: msgspec.structs.replace(r, uid=1234), "its account"),
        (lambda r, _: msgspec.structs.replace(r, gpus=[]), "keeps its socket"),
        (lambda r, other: sized(r, gpu=other), "keeps its socket"),
        (lambda r, _: sized(r, enforce="memory"), "what is enforced"),
        (lambda r, _: sized(r, wake_us=5000), "its wake"),
        (lambda r, _: sized(r, request_milli=700, limit_milli=600), "request 700 and limit 600"),
        (lambda r, _: sized(r, limit_milli=1001), "limit 1001"),
        (lambda r, _: sized(r, request_milli=-1), "request -1"),
        (lambda r, _: sized(r, memory_mib=-1), "memory_mib -1"),
        (lambda r, _: sized(r, memory_mib=1 << 44), "must be 0 to"),
    ],
)
def test_a_wrong_record_is_refused_in_a_sentence(arbiter, change, said):
    """A record that no tenant can have, or that changes more than sizes, is refused, and the tenant is as it was."""
    record = arbiter.tenant("a", 300, 600)
    with pytest.raises(ArbiterError) as refused:
        arbiter.admin.resize_tenant(change(record, arbiter.other_gpu))

    assert said in str(refused.value)
    assert (300, 600, 1000) == (
        arbiter.seen("a").request_milli,
        arbiter.seen("a").limit_milli,
        arbiter.seen("a").memory_limit_mib,
    )
