"""Tenants that send garbage, flood, lie or pretend, beside a CUDA program under the real hook that must not notice."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from kit.arbiter import FakeProcess
from stage import Client, Stage
from waiting import eventually

from aliquot.arbiter.abi import MESSAGE_STRUCT, MessageType

pytestmark = pytest.mark.real_time


@contextlib.contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Repeat `work` in a thread; what breaks its connection is its own affair."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError, TimeoutError):
                work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def scene(stage) -> Stage:
    """A stage with the hostile tenant `x`; its socket is open to this process."""
    scene = stage()
    scene.tenant("x", 500)
    return scene


def hostile(scene: Stage, *, hello: bool = True) -> FakeProcess:
    """A connection of the hostile tenant."""
    process = FakeProcess(str(scene.directory / "x.sock"), hello=hello)
    if hello:
        process.attach(scene.machine.uuids[0])
    return process


def unharmed(scene: Stage, client: Client) -> bool:
    """The program runs, on its first connection, and has said nothing."""
    return client.process.poll() is None and client.said == "" and scene.seen(client.name).processes == 1


def test_garbage_harms_neither_a_neighbour_nor_a_sister(scene):
    """Random bytes on many connections of a tenant leave its own CUDA program and its neighbour's at work."""
    sister = scene.client("y", 100).wait_ready()
    neighbour = scene.client("b", 500).wait_ready()

    def garbage() -> None:
        time.sleep(0.002)
        for path in ("x.sock", "y.sock"):
            process = FakeProcess(str(scene.directory / path), hello=False)
            process.sock.send(os.urandom(64))
            process.close()

    before, during = scene.interleaved([neighbour, sister], lambda: meanwhile(garbage))

    assert during > 0.75 * before
    assert unharmed(scene, neighbour)
    assert unharmed(scene, sister)


def test_a_flood_takes_nothing_from_a_neighbour(scene):
    """While a connection floods, a program with a request of 0.5 gets all the GPU it had."""
    neighbour = scene.client("b", 500).wait_ready()
    flood = hostile(scene)
    message = MESSAGE_STRUCT.pack(MessageType.RETURN, 0, 0, 1, 0, 0, 0, 0, bytes(16))

    def floods() -> AbstractContextManager:
        return meanwhile(lambda: [flood.sock.send(message) for _ in range(500)] and None)

    def throttled() -> bool:
        return any(event["kind"] == "throttled" and event["tenant"] == "x" for event in scene.admin.events())

    with floods():
        eventually(throttled, "the flood is throttled")
    before, during = scene.interleaved([neighbour], floods)

    assert during > 0.75 * before
    assert unharmed(scene, neighbour)


@pytest.mark.parametrize("lie", ["never", "at once"])
def test_lies_about_draining_cost_the_liar(scene, lie):
    """Whoever says DRAINED never or at once, and for other grants, is charged; its neighbour has its request."""
    neighbour = scene.client("b", 500).wait_ready()
    liar = hostile(scene)

    def lies() -> None:
        liar.want()
        epoch = liar.wait_valid(timeout_s=1)
        for wrong in (epoch + 1, epoch - 1, 2**40):
            liar.send(MessageType.DRAINED, a=wrong)
        liar.wait_closed(timeout_s=1)
        if lie == "at once":
            liar.drained()

    lies()
    with meanwhile(lies):
        [share] = scene.charged([neighbour], 4)  # many turns: each lie delays one by as long as an answer is waited for

    assert share > 0.38  # the liar is charged for what it makes others wait, and pays it back slowly
    assert scene.seen("x").charged_ns > 50_000_000
    assert unharmed(scene, neighbour)
    liar.close()


def test_pretending_to_be_another_changes_only_ones_own_ledger(scene):
    """A pid in HELLO, descriptors sent along and another's lease count for nothing: the socket says who it is."""
    neighbour = scene.client("b", 500).wait_ready()
    held = scene.seen("b").memory_used_mib
    descriptors = scene.descriptors()
    pretender = FakeProcess(str(scene.directory / "x.sock"), hello=False)
    pretender.send(MessageType.HELLO, a=1, c=neighbour.process.pid)
    assert pretender.receive()[0] == MessageType.WELCOME
    pretender.attach(scene.machine.uuids[0])
    pretender.reserve(64 << 20)
    stray = MESSAGE_STRUCT.pack(MessageType.RETURN, 0, 0, 9, 1, 0, 0, 0, bytes(16))
    for _ in range(50):
        socket.send_fds(pretender.sock, [stray], [0, 1, 2])
    pretender.want()
    pretender.wait_valid()
    eventually(lambda: scene.seen("x").memory_used_mib == 64, "the lease is on the pretender's account")

    assert scene.seen("b").memory_used_mib == held
    assert scene.seen("x").processes == 1
    pretender.send(MessageType.RELEASE, a=1 << 40)
    eventually(lambda: scene.seen("x").processes == 0, "the pretender is cut off")
    watched = 1  # the pretender's process, which lives on and may hold what it reserved
    eventually(lambda: scene.descriptors() <= descriptors + watched, "descriptors sent along are closed")
    assert unharmed(scene, neighbour)
    pretender.close()
