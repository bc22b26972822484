"""Memory leases: reserved before they are used, never over the limit, free again with the process."""

import os

import pytest
from waiting import eventually, stop

from aliquot.arbiter.abi import MessageType, ReserveFlag

MIB = 1 << 20


def test_slab_is_leased_when_there_is_room(arbiter):
    """Far from the limit a process gets the slab it likes instead of the bytes it needs."""
    arbiter.tenant("a", memory_mib=1000)
    assert arbiter.process("a").reserve(1 * MIB, 64 * MIB) == 64 * MIB


def test_near_the_limit_only_what_is_needed_is_leased(arbiter):
    """Near the limit no slack is leased, so the last byte can be used."""
    process = arbiter.program("a", memory_mib=100)
    assert process.reserve(90 * MIB) == 90 * MIB

    assert process.reserve(10 * MIB, 64 * MIB) == 10 * MIB
    assert process.reserve(1) == 0


def test_not_one_byte_over_the_limit(arbiter):
    """A request that does not fit is answered with zero, whatever its size."""
    process = arbiter.program("a", memory_mib=100)

    assert process.reserve(100 * MIB + 1) == 0
    assert process.reserve(2**64 - 1) == 0
    assert process.reserve(100 * MIB) == 100 * MIB


def test_limit_is_shared_by_all_processes_of_a_tenant(arbiter):
    """What one process holds is missing for the next; starting more processes buys nothing."""
    arbiter.tenant("a", memory_mib=100)
    one, two = arbiter.process("a"), arbiter.process("a")
    one.reserve(60 * MIB)

    assert two.reserve(60 * MIB) == 0
    assert two.pages[0].u64("memory_leased_bytes") == 60 * MIB


def test_memory_of_a_dead_process_is_free(arbiter):
    """When a process ends, all it held can be leased again."""
    arbiter.tenant("a", memory_mib=100)
    holder, other = arbiter.holder(100), arbiter.process("a")
    holder.kill()

    eventually(lambda: other.pages[0].u64("memory_leased_bytes") == 0)
    assert other.reserve(100 * MIB) == 100 * MIB


def test_memory_of_a_process_that_is_not_connected_is_not_free(arbiter):
    """A living process whose connection has ended may hold its memory still, until it has ended too."""
    arbiter.tenant("a", memory_mib=100)
    holder, other = arbiter.holder(100, code="p.close()"), arbiter.process("a")
    eventually(lambda: arbiter.seen("a").processes == 1)

    assert 0 == other.reserve(1 * MIB)
    holder.kill()
    eventually(lambda: other.reserve(100 * MIB) == 100 * MIB)


def test_a_new_arbiter_charges_what_a_stopped_process_holds(arbiter):
    """A process that cannot report to a new arbiter keeps its memory, and no other process gets it while it lives."""
    arbiter.tenant("a", memory_mib=100)
    holder = arbiter.holder(90)
    stop(holder.pid)
    arbiter.kill()
    arbiter.start()
    other = arbiter.process("a")

    assert (0, 10 * MIB) == (other.reserve(11 * MIB), other.reserve(10 * MIB))
    holder.kill()
    eventually(lambda: other.reserve(90 * MIB) == 90 * MIB)


def test_a_process_that_ended_while_no_arbiter_ran_holds_nothing(arbiter):
    """A new arbiter charges no process that has ended meanwhile."""
    arbiter.tenant("a", memory_mib=100)
    holder = arbiter.holder(90)
    arbiter.kill()
    holder.kill()
    holder.wait()
    arbiter.start()

    assert 100 * MIB == arbiter.process("a").reserve(100 * MIB)


@pytest.mark.parametrize("restored", [60, 0])
def test_what_a_process_reports_to_a_new_arbiter_replaces_what_was_kept_of_it(arbiter, restored):
    """A process that is late is charged what was kept until its last RESTORE, from then on what that says."""
    before = arbiter.program("a", memory_mib=100, context_mib=10)
    before.reserve(0, flags=ReserveFlag.CONTEXT)
    before.reserve(60 * MIB)
    arbiter.kill()
    arbiter.start()
    late = arbiter.process("a")
    charged = [arbiter.seen("a").memory_used_mib]
    late.reserve(0, flags=ReserveFlag.CONTEXT | ReserveFlag.RESTORE)
    charged.append(arbiter.seen("a").memory_used_mib)
    late.reserve(restored * MIB, flags=ReserveFlag.RESTORE)
    charged.append(arbiter.seen("a").memory_used_mib)

    assert [70, 70, 10 + restored] == charged


def test_context_is_charged_its_allowance(arbiter):
    """A context costs the record's allowance, and is refused when that does not fit."""
    process = arbiter.program("a", memory_mib=500, context_mib=300)

    assert process.reserve(0, flags=ReserveFlag.CONTEXT) == 300 * MIB
    assert process.reserve(0, flags=ReserveFlag.CONTEXT) == 0
    assert process.pages[0].u64("memory_context_bytes") == 300 * MIB
    assert process.reserve(201 * MIB) == 0


def test_context_is_given_back(arbiter):
    """A destroyed context gives its allowance back."""
    process = arbiter.program("a", memory_mib=500, context_mib=300)
    process.reserve(0, flags=ReserveFlag.CONTEXT)
    process.send(MessageType.RELEASE, flags=ReserveFlag.CONTEXT)

    assert process.reserve(500 * MIB) == 500 * MIB


def test_restored_memory_is_charged_even_over_the_limit(arbiter):
    """What a process held before a restart is charged as it is; nothing new fits beside it."""
    process = arbiter.program("a", memory_mib=100)

    assert process.reserve(150 * MIB, flags=ReserveFlag.RESTORE) == 150 * MIB
    assert process.reserve(1) == 0
    assert arbiter.seen("a").memory_used_mib == 150


def test_released_memory_can_be_leased_again(arbiter):
    """RELEASE makes room for others of the tenant."""
    process = arbiter.program("a", memory_mib=100)
    process.reserve(100 * MIB)
    process.send(MessageType.RELEASE, a=40 * MIB)

    assert process.reserve(40 * MIB) == 40 * MIB
    assert process.reserve(1) == 0


def test_page_names_the_processes_of_the_tenant(arbiter):
    """The grant page lists the pids of the tenant's attached processes, for its view of NVML, and of nobody else."""
    stays, goes, _other = arbiter.programs("a", "a", "b")
    pids = stays.pages[0].pids

    assert pids() == [os.getpid()] * 2
    goes.close()
    eventually(lambda: pids() == [os.getpid()])
