"""What a process is charged for its contexts, once NVML has told what it uses; and what it is asked to return."""

import os
import socket
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from aliquot.arbiter.abi import GRANT_PAGE, MESSAGE_STRUCT, FailPolicy, MessageType, ReserveFlag
from aliquot.arbiter.engine import Dispatcher
from aliquot.arbiter.grants import Descriptor, GrantState, MemoryLease, Process, Tenant
from aliquot.arbiter.measure import MemoryMeasure, correct
from aliquot.arbiter.pages import GrantPage
from aliquot.arbiter.protocol import Protocol
from aliquot.arbiter.records import EventRing, TenantGpu, TenantRecord
from aliquot.tokens import TokenConfig, token_policy

MIB = 1 << 20
GPU = f"GPU-{uuid.uuid4()}"
PID = 4711


@pytest.fixture
def scene():
    """A tenant's grant state of one GPU, and a process of it."""
    gpu = TenantGpu(GPU, 500, 1000, 1000, 300)
    page = GrantPage(gpu, boot_id=1, fail_policy=FailPolicy.PACE, window_ms=1000, gap_us=2000, in_flight_us=16000)
    grant = GrantState(0, gpu, page)
    ours, theirs = socket.socketpair()
    process = Process(
        ours, Tenant(TenantRecord("a", "", [gpu]), theirs, [grant]), PID, -1, 0.0, 0, leases={0: MemoryLease()}
    )
    grant.attached.add(process)
    yield grant, process.leases[0]
    page.close()
    ours.close()
    theirs.close()


def message(kind: MessageType, flags: int) -> bytes:
    """One that names no bytes."""
    return MESSAGE_STRUCT.pack(kind, flags, 0, 1, 0, 0, 0, 0, bytes(16))


def test_the_allowance_is_corrected_by_what_is_measured(scene):
    """A context that costs 450 MiB instead of its allowance of 300 is charged 450."""
    grant, lease = scene
    lease.contexts = 1
    grant.add(lease, leased=100 * MIB, context=300 * MIB)

    correct(grant, {(GPU, PID): 550 * MIB})

    assert 450 * MIB == grant.context_bytes


def test_memory_that_was_returned_after_it_was_measured_is_no_context(scene):
    """Memory that a process gave back between NVML's answer and its use here is not taken for that of its context."""
    grant, lease = scene
    lease.contexts = 1
    grant.add(lease, leased=164 * MIB, context=300 * MIB)
    measured = {(GPU, PID): 464 * MIB}
    charged = []
    for returned in (100 * MIB, 0, 64 * MIB):
        grant.add(lease, leased=-returned)
        correct(grant, measured)
        charged.append(grant.context_bytes // MIB)
        measured = {(GPU, PID): 300 * MIB + lease.leased_bytes}

    assert [300, 300, 300] == charged


def test_a_sample_may_begin_before_the_last_one_was_used(scene):
    """Memory that was measured, returned, and followed by the use of an earlier sample is no context either."""
    grant, lease = scene
    lease.contexts = 1
    grant.add(lease, leased=164 * MIB, context=300 * MIB)
    earlier = later = {(GPU, PID): 464 * MIB}
    grant.add(lease, leased=-100 * MIB)
    correct(grant, earlier)
    correct(grant, later)

    assert 300 * MIB == grant.context_bytes


def test_an_excess_that_stays_is_charged_two_samples_later(scene):
    """Memory without a lease is told from a lease just returned once it is in a sample that began after the return."""
    grant, lease = scene
    lease.contexts = 1
    grant.add(lease, leased=164 * MIB, context=300 * MIB)
    grant.add(lease, leased=-100 * MIB)
    charged = []
    for _ in range(3):
        correct(grant, {(GPU, PID): 464 * MIB})
        charged.append(grant.context_bytes // MIB)

    assert [300, 300, 400] == charged


def test_a_context_that_ended_after_it_was_measured_is_not_charged_to_the_other(scene):
    """A sample with a context that has ended since does not raise what is charged for the one that is left."""
    grant, lease = scene
    process = next(iter(grant.attached))
    lease.contexts = 2
    grant.add(lease, leased=64 * MIB, context=600 * MIB)
    protocol = Protocol(SimpleNamespace(), 1, 256)  # this message needs no engine
    process.greeted = True
    protocol.handle(process, message(MessageType.RELEASE, ReserveFlag.CONTEXT), 0)
    for measured in (664, 664, 364):
        correct(grant, {(GPU, PID): measured * MIB})

    assert 300 * MIB == grant.context_bytes


def test_an_allowance_stays_where_nvml_does_not_tell(scene):
    """Where NVML knows the process but not its memory, the context keeps its allowance."""
    grant, lease = scene
    lease.contexts = 1
    grant.add(lease, context=300 * MIB)

    correct(grant, {(GPU, PID): None})
    correct(grant, {})

    assert 300 * MIB == grant.context_bytes


def test_a_context_that_was_made_past_the_hook_is_charged_as_measured(scene):
    """A process that uses memory without a context of the hook's ledger is charged it, until it is gone."""
    grant, lease = scene
    grant.add(lease, leased=64 * MIB)
    charged = []
    for used in ({(GPU, PID): 400 * MIB}, {(GPU, PID): None}, {(GPU, PID): 350 * MIB}, {}):
        correct(grant, used)
        charged.append(grant.context_bytes // MIB)

    assert [336, 336, 286, 0] == charged


@pytest.mark.parametrize(("measured", "charged"), [(200, 300), (336, 336)])
def test_a_context_made_past_the_hook_is_not_charged_again_when_the_hook_sees_it(scene, measured, charged):
    """What was measured of a context is part of its allowance once the process asks for that."""
    grant, lease = scene
    process = next(iter(grant.attached))
    process.greeted = True
    correct(grant, {(GPU, PID): measured * MIB})
    engine = Dispatcher(token_policy(TokenConfig()), lambda *_, **__: None)

    Protocol(engine, 1, 256).handle(process, message(MessageType.RESERVE, ReserveFlag.CONTEXT), 0)

    assert (1, charged) == (lease.contexts, grant.context_bytes // MIB)


@pytest.mark.parametrize(
    ("used", "leased", "contexts", "charged"),
    [(410, 0, 1, 410), (410, 100, 1, 300), (410, 0, 2, 300), (900, 0, 1, 500), (220, 0, 1, 220)],
)
def test_a_context_is_charged_what_one_was_seen_to_take_alone(scene, used, leased, contexts, charged):
    """The next context is charged what one took whose process had nothing else, to half of the tenant's memory."""
    grant, lease = scene
    process = next(iter(grant.attached))
    process.greeted = True
    lease.contexts = contexts
    grant.add(lease, leased=leased * MIB, context=contexts * 300 * MIB)
    engine = Dispatcher(token_policy(TokenConfig()), lambda *_, **__: None)
    engine.tenants = {"a": process.tenant}
    measure = MemoryMeasure(Path("libnvidia-ml.so.1"), lambda: ({(GPU, PID): used * MIB}, {}))
    measure.close()
    measure._latest = measure._sample()
    measure.apply(engine, EventRing(10), 0)
    grant.add(lease, context=-grant.context_bytes)

    Protocol(engine, 1, 256).handle(process, message(MessageType.RESERVE, ReserveFlag.CONTEXT), 0)

    assert charged == grant.context_bytes // MIB


@pytest.mark.parametrize("counted", [0, 200])
def test_shared_memory_is_no_context_whoever_nvml_counts_it_for(scene, counted):
    """What a process holds with others is in the ledger once, and NVML may count it for this process or another."""
    grant, lease = scene
    process = next(iter(grant.attached))
    lease.contexts = 1
    grant.add(lease, leased=264 * MIB, context=300 * MIB)
    number = grant.shared.make(200 * MIB)
    grant.add(lease, leased=-200 * MIB)
    grant.shared.hold(number, process, Descriptor(PID, 3, (1, 2), regular=True))
    for _ in range(3):
        correct(grant, {(GPU, PID): (364 + counted) * MIB})

    assert 300 * MIB == grant.context_bytes


def test_a_process_that_only_asks_is_charged_nothing(scene):
    """A process that is not on the GPU has no context to pay for."""
    grant, _ = scene
    correct(grant, {("GPU-of-others", PID): 400 * MIB})

    assert 0 == grant.context_bytes


def test_memory_that_a_process_leased_and_does_not_use_is_asked_for_in_the_page(scene):
    """The number in the page is raised, on which its threads sleep; not again while the answer is awaited."""
    grant, lease = scene
    grant.reserve(lease, MIB, 8 * MIB)

    offset = next(field.offset for field in GRANT_PAGE if field.name == "memory_demand")

    def shown() -> int:
        return int.from_bytes(os.pread(grant.page.fd, 4, offset), "little")

    before = shown()
    asked = [(grant.demand_memory(None), shown()) for _ in range(2)]

    assert (0, [(True, 1), (True, 1)]) == (before, asked)
