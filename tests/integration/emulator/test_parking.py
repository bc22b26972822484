"""cuCheckpointProcess...: a process's device memory leaves the GPU and comes back, at another process's call."""

from __future__ import annotations

import time

import pytest
from kit.driver_calls import MIB, NOT_READY, OUT_OF_MEMORY, Array, Driver, Out

HANDLE = 64  # bytes of CUipcMemHandle
RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
INVALID, NOT_INITIALIZED, OS_ERROR, ILLEGAL_STATE, NOT_SUPPORTED = 1, 3, 304, 401, 801


def filled(gpu: Driver, size: int) -> int:
    """Memory with a 9 in every byte."""
    pointer = gpu.new("cuMemAlloc_v2", size)
    gpu.ok("cuMemsetD8_v2", pointer, 9, size)
    return pointer


def step(by: Driver, name: str, pid: int, args: bytes | None = None) -> int:
    """The answer of cuCheckpointProcess`name`."""
    return by.call(f"cuCheckpointProcess{name}", pid, args).code


def state(by: Driver, pid: int) -> int:
    """The target's state."""
    return int(by.call("cuCheckpointProcessGetState", pid, Out(4)).value)


def put_away(by: Driver, pid: int) -> None:
    """Lock and checkpoint."""
    assert (0, 0) == (step(by, "Lock", pid), step(by, "Checkpoint", pid))


def test_memory_leaves_the_gpu_and_comes_back(clients):
    """A checkpoint frees what the process had of the device, contexts too; a restore brings it all back, unchanged."""
    machine = clients()
    owner, other = machine.gpu(), machine.gpu()
    pid, held = owner.process.pid, filled(owner, 512 * MIB)
    before = other.memory_info()
    put_away(other, pid)
    away = other.memory_info()
    states = [state(other, pid), step(other, "Restore", pid), state(other, pid), step(other, "Unlock", pid)]

    assert away[0] >= before[0] + 512 * MIB
    assert [CHECKPOINTED, 0, LOCKED, 0] == states
    assert (RUNNING, before, 9) == (
        state(other, pid),
        other.memory_info(),
        owner.call("cuMemcpyDtoH_v2", Out(1), held, 1).value,
    )


def test_calls_wait_while_it_is_locked(clients):
    """A call of a locked process returns once that is unlocked, and the lock waits for work that was launched."""
    machine = clients()
    owner, other = machine.gpu(), machine.gpu()
    pid, fn = owner.process.pid, owner.function("step_ms2")
    owner.ok("cuLaunchKernel", fn, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    assert 0 == step(other, "Lock", pid)
    pending = owner.begin("cuCtxSynchronize")
    with pytest.raises(AssertionError):
        pending.answer(timeout_s=0.1)

    assert 0 == step(other, "Unlock", pid)
    assert 0 == pending.answer().code


def test_a_lock_gives_up_after_its_time(clients):
    """Work that does not end in the given time leaves the process running."""
    machine = clients("a100", "fault=hang 0")
    owner, other = machine.gpu(), machine.gpu()
    owner.ok("cuLaunchKernel", owner.function("step_ms2"), 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    answer = step(other, "Lock", owner.process.pid, (20).to_bytes(64, "little"))

    assert (NOT_READY, RUNNING) == (answer, state(other, owner.process.pid))


def test_each_step_has_its_state(clients):
    """A step in another state is refused, and so is a process that is not there or has not started the driver."""
    machine = clients()
    owner, other, plain = machine.gpu(), machine.gpu(), machine.driver()
    pid = owner.process.pid
    refused = [step(other, name, pid) for name in ("Checkpoint", "Restore", "Unlock")]
    put_away(other, pid)
    refused += [step(other, name, pid) for name in ("Lock", "Checkpoint", "Unlock")]

    assert [ILLEGAL_STATE] * 6 == refused
    assert (INVALID, INVALID) == (step(other, "Lock", 0), step(other, "Lock", 1 << 30))
    assert NOT_INITIALIZED == step(other, "Lock", plain.process.pid)
    assert NOT_INITIALIZED == step(plain, "Lock", pid)


def test_a_restore_without_memory_loses_the_process(clients):
    """As in NVIDIA/cuda-checkpoint#44: later restores fail also when there is memory, and it cannot be unlocked."""
    machine = clients("t4")
    owner, other = machine.gpu(), machine.gpu()
    pid = owner.process.pid
    owner.new("cuMemAlloc_v2", 8192 * MIB)
    put_away(other, pid)
    filler = other.new("cuMemAlloc_v2", 10240 * MIB)
    first = step(other, "Restore", pid)
    other.ok("cuMemFree_v2", filler)

    assert (OUT_OF_MEMORY, CHECKPOINTED) == (first, state(other, pid))
    assert (OS_ERROR, ILLEGAL_STATE) == (step(other, "Restore", pid), step(other, "Unlock", pid))


def test_a_restore_may_be_onto_another_gpu(clients):
    """By pairs that name every GPU once; the process has its memory there, works there, and sees that GPU's UUID."""
    machine = clients("v100x3")
    owner, other = machine.gpu(), machine.gpu()
    pid, held = owner.process.pid, filled(owner, 512 * MIB)
    uuids = [other.call("cuDeviceGetUuid_v2", Out(16), number).value for number in range(3)]

    def restored_on(*after: int) -> int:
        pairs = b"".join(uuids[old] + uuids[new] for old, new in enumerate(after))
        return int(other.call("cuCheckpointProcessRestore", pid, Array((pairs, len(after)))).code)

    before, _ = other.memory_info()
    put_away(other, pid)
    refused = [restored_on(*after) for after in ((1,), (1, 0), (1, 1, 2))]
    moved = [restored_on(1, 0, 2), step(other, "Unlock", pid)]
    owner.ok("cuLaunchKernel", owner.function("step_ms2"), 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    (there, total), (here, _) = owner.memory_info(), other.memory_info()

    assert ([INVALID] * 3, [0, 0]) == (refused, moved)
    assert min(total - there, here - before) >= 512 * MIB
    assert (0, 9) == (owner.sync(), owner.call("cuMemcpyDtoH_v2", Out(1), held, 1).value)
    assert uuids[1] == owner.call("cuDeviceGetUuid_v2", Out(16), 0).value
    put_away(other, pid)
    assert [0, 0] == [step(other, "Restore", pid), step(other, "Unlock", pid)]
    assert uuids[1] == owner.call("cuDeviceGetUuid_v2", Out(16), 0).value


@pytest.mark.parametrize("kind", ["unified", "exported"])
def test_shared_and_unified_memory_is_refused(clients, kind):
    """The checkpoint fails, and the process is not left in a good state."""
    machine = clients()
    owner, other = machine.gpu(), machine.gpu()
    pid = owner.process.pid
    if kind == "unified":
        owner.new("cuMemAllocManaged", MIB, 1)
    else:
        owner.call("cuIpcGetMemHandle", Out(HANDLE), owner.new("cuMemAlloc_v2", MIB))
    answers = [step(other, "Lock", pid), step(other, "Checkpoint", pid), state(other, pid), step(other, "Unlock", pid)]

    assert [0, NOT_SUPPORTED, FAILED, ILLEGAL_STATE] == answers


@pytest.mark.slow
@pytest.mark.real_time
def test_a_move_takes_what_the_link_takes(clients):
    """15.8 GB a second over 16 lanes of the third generation, in each direction."""
    machine = clients("t4")
    owner, other = machine.gpu(), machine.gpu()
    owner.new("cuMemAlloc_v2", 8192 * MIB)
    pid, times = owner.process.pid, []
    assert 0 == step(other, "Lock", pid)
    for name in ("Checkpoint", "Restore"):
        began = time.monotonic()
        assert 0 == step(other, name, pid)
        times.append(time.monotonic() - began)

    assert all(0.52 < each < 0.75 for each in times)


def test_a_killed_process_leaves_nothing(clients):
    """One that is killed while it is away has nothing to give back, and its place is a new process's."""
    machine = clients()
    owner, other = machine.gpu(), machine.gpu()
    owner.new("cuMemAlloc_v2", 512 * MIB)
    put_away(other, owner.process.pid)
    away = other.memory_info()
    owner.kill()

    assert away == other.memory_info()
    assert RUNNING == state(other, machine.gpu().process.pid)
