"""A real arbiter and tenants that speak its messages: who may launch when."""

import signal
import time

import pytest
from waiting import eventually

from aliquot.arbiter.abi import AttachFlag, Feature, MessageType

# A tenant that has not drained is waited for, however slowly a busy machine runs the test.
PATIENT = ("--drain-timeout-ms", "60000")


def test_the_first_grant_has_its_time_in_the_status(arbiter):
    """The status has the moment of a tenant's first grant, none before it, and the same one after later grants."""
    arbiter.tenant("a")
    process, before_ns = arbiter.process("a"), time.monotonic_ns()
    assert 0 == arbiter.seen("a").first_grant_ns
    process.hold()
    first_ns = arbiter.seen("a").first_grant_ns
    process.give_back()
    eventually(lambda: not process.pages[0].valid)
    process.hold()

    assert before_ns < first_ns < time.monotonic_ns()
    assert (first_ns, 2) == (arbiter.seen("a").first_grant_ns, arbiter.seen("a").handovers)


def test_lone_holder_is_renewed_without_a_message(arbiter):
    """The deadline of a lone holder moves while its word stays."""
    process = arbiter.program("a")
    epoch = process.hold()
    deadline = process.pages[0].u64("deadline_ns")
    eventually(lambda: process.pages[0].u64("deadline_ns") > deadline + 300_000_000, "the deadline moves")

    assert (epoch, True) == (process.pages[0].epoch, process.pages[0].valid)


def test_whole_gpus_that_are_not_enforced_have_an_open_gate(arbiter):
    """The gate is open from the start and stays so whatever is said of turns; it closes when the tenant is removed."""
    arbiter.tenant("a", 1000, enforce="memory")
    page = arbiter.process("a").pages[0]

    assert page.valid
    assert page.u64("features") & Feature.UNGATED
    assert page.u64("deadline_ns") > time.monotonic_ns() + 3600 * 10**9
    process = arbiter.process("a")
    process.want()
    process.give_back()
    time.sleep(0.2)
    assert (1, True) == (page.epoch, page.valid)
    arbiter.admin.remove_tenant("a")
    assert not page.valid


def test_waiter_has_the_holder_revoked_and_follows_its_drain(start_arbiter):
    """A waiter is granted after the holder was revoked and has drained, not before."""
    arbiter = start_arbiter(*PATIENT)
    first, second = arbiter.programs("a", "b")
    first.hold()
    second.want()
    first.wait_closed()
    time.sleep(0.02)
    assert not second.pages[0].valid
    first.drained()

    assert second.wait_valid() == 1


def test_waiters_are_shown_in_the_holders_page(arbiter):
    """The holder's page says how many others wait, so the hook bounds its launches only then."""
    first, second = arbiter.programs("a", "b")
    first.hold()
    assert first.pages[0].u32("waiters") == 0
    second.want()

    eventually(lambda: first.pages[0].u32("waiters") == 1)


def test_idle_return_hands_over_at_once(arbiter):
    """A holder that returns the token is followed by the waiter within the round trip."""
    first, second = arbiter.programs("a", "b")
    first.hold()
    second.want()
    first.give_back()

    second.wait_valid()
    assert not first.pages[0].valid


def test_two_processes_of_a_tenant_share_one_grant(arbiter):
    """The tenant has returned only when every process that wanted the grant has returned."""
    one, two, other = arbiter.programs("a", "a", "b")
    one.want()
    two.want()
    one.wait_valid()
    two.wait_valid()
    one.give_back()
    time.sleep(0.05)
    assert two.pages[0].valid
    two.give_back()
    other.want()

    other.wait_valid()


def test_process_that_returned_is_let_in_again_by_a_higher_epoch(arbiter):
    """While others of the tenant go on, a process that gave back and wants again sees a new epoch."""
    one, two = arbiter.programs("a", "a")
    one.want()
    two.want()
    epoch = one.wait_valid()
    one.give_back()
    one.want()

    assert one.wait_valid(above=epoch) > epoch


def test_tenant_is_drained_when_all_its_processes_have_answered(start_arbiter):
    """One process that has not drained keeps the next tenant waiting."""
    arbiter = start_arbiter(*PATIENT)
    one, two, other = arbiter.programs("a", "a", "b")
    one.hold()
    other.want()
    one.wait_closed()
    one.drained()
    with pytest.raises(TimeoutError):
        other.wait_valid(timeout_s=0.02)
    two.drained()

    other.wait_valid()


@pytest.mark.real_time
def test_dead_holder_is_followed_within_fifty_milliseconds(arbiter):
    """A holder killed with -9 is charged and the waiter is granted within 50 ms."""
    arbiter.tenant("a")
    holder, waiter = arbiter.holder(1, code="p.hold()"), arbiter.program("b")
    waiter.want()
    eventually(lambda: arbiter.seen("b").waiting)
    began = time.monotonic()
    holder.kill()
    waiter.wait_valid(timeout_s=1)
    took = time.monotonic() - began

    assert took < 0.05
    assert arbiter.seen("a").charged_ns > 0


def test_gang_is_granted_on_both_gpus_at_once(start_arbiter):
    """A tenant with two GPUs gets both gates opened by one grant, after whoever held one has drained."""
    arbiter = start_arbiter(*PATIENT)
    arbiter.tenant("solo")
    arbiter.tenant("gang", gpus=[arbiter.gpu, arbiter.other_gpu])
    solo = arbiter.process("solo")
    gang = arbiter.process("gang", gpus=[arbiter.gpu, arbiter.other_gpu])
    solo.hold()
    gang.want(slot=1)
    solo.wait_closed()
    assert not gang.pages[1].valid
    solo.drained()

    gang.wait_valid(slot=0)
    gang.wait_valid(slot=1)


def test_undrained_tenant_hurts_only_itself(start_arbiter):
    """A tenant that never says it has drained is passed over; the others go on without it."""
    arbiter = start_arbiter("--drain-timeout-ms", "200")
    liar, honest = arbiter.programs("liar", "b")
    liar.hold()
    honest.want()
    liar.wait_closed()

    honest.wait_valid()
    before = arbiter.seen("liar").charged_ns
    eventually(lambda: arbiter.seen("liar").charged_ns > before, "the liar is charged")
    assert not liar.pages[0].valid


def test_a_viewer_is_not_waited_for(arbiter):
    """A process that attached to look only is listed, and neither its silence nor its end keeps a turn from ending."""
    arbiter.tenant("a")
    arbiter.tenant("b")
    worker, viewer, other = arbiter.process("a"), arbiter.process("a", gpus=[]), arbiter.process("b")
    viewer.attach(arbiter.gpu, flags=AttachFlag.VIEW)
    worker.hold()
    assert 2 == arbiter.seen("a").processes

    worker.give_back()
    other.hold()

    worker.want()
    other.wait_closed()
    other.drained()
    epoch = worker.wait_valid()
    viewer.close()
    other.want()
    worker.wait_closed()
    worker.drained()
    other.wait_valid()
    assert epoch == worker.pages[0].epoch


def test_a_viewer_that_attaches_again_without_the_flag_is_waited_for(start_arbiter):
    """From its second ATTACH on a process takes part: its tenant has drained when it has answered too."""
    arbiter = start_arbiter(*PATIENT)
    arbiter.tenant("a")
    arbiter.tenant("b")
    viewer, other = arbiter.process("a", gpus=[]), arbiter.process("b")
    viewer.attach(arbiter.gpu, flags=AttachFlag.VIEW)
    viewer.attach(arbiter.gpu)
    viewer.hold()
    other.want()
    viewer.wait_closed()
    with pytest.raises(TimeoutError):
        other.wait_valid(timeout_s=0.01)

    viewer.drained()
    other.wait_valid()


def test_reports_of_processes_add_up(arbiter):
    """What processes report of themselves, as sums, is added up for their tenant; repeating it adds nothing."""
    first, second = arbiter.programs("a", "a")
    for process, unrouted, ungated_ms in ((first, 2, 0), (first, 3, 5), (first, 3, 5), (second, 1, 10)):
        process.send(MessageType.REPORT, a=unrouted, b=ungated_ms * 1_000_000)
    first.close()

    eventually(lambda: arbiter.seen("a").unrouted == 4 and arbiter.seen("a").processes == 1)
    assert 15.0 == arbiter.seen("a").ungated_ms
    counts = {event["kind"]: event["count"] for event in arbiter.admin.events()}
    assert (2, 2) == (counts["unrouted"], counts["ungated"])


def test_the_page_carries_a_sign_of_life(arbiter):
    """An arbiter that runs renews the page's `beat_ns` several times a second, and stops when it is stopped."""
    arbiter.tenant("a")
    page = arbiter.process("a").pages[0]
    first = page.u64("beat_ns")
    eventually(lambda: page.u64("beat_ns") > first)
    arbiter.child.send_signal(signal.SIGSTOP)
    time.sleep(0.1)
    stopped = page.u64("beat_ns")
    time.sleep(0.6)

    assert stopped == page.u64("beat_ns")
    arbiter.child.send_signal(signal.SIGCONT)
    eventually(lambda: page.u64("beat_ns") > stopped)


def test_a_late_answer_for_an_old_grant_ends_a_resumption(start_arbiter):
    """A tenant whose parts were caught at different steps is let go on, and revoked when the one ahead has drained."""
    arbiter = start_arbiter(*PATIENT)
    ahead, behind, other = arbiter.programs("a", "a", "b")
    first = ahead.hold()
    other.want()
    old = ahead.wait_closed()
    behind.drained()
    behind.want()

    resumed = behind.wait_valid(above=first)
    ahead.send(MessageType.DRAINED, a=old, b=time.monotonic_ns())
    behind.wait_closed()
    behind.drained()
    ahead.drained()

    other.wait_valid()
    assert old == first
    assert resumed > first
