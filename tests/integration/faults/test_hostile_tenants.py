"""A tenant that pretends to be another, beside a CUDA program under the real hook that must not notice."""

import socket

import pytest
from kit.arbiter import FakeProcess
from stage import Client, Stage
from waiting import eventually

from aliquot.arbiter.abi import MESSAGE_STRUCT, MessageType

pytestmark = pytest.mark.real_time


@pytest.fixture
def scene(stage) -> Stage:
    """A stage with the hostile tenant `x`; its socket is open to this process."""
    scene = stage()
    scene.tenant("x", 500)
    return scene


def unharmed(scene: Stage, client: Client) -> bool:
    """The program runs, on its first connection, and has said nothing."""
    return client.process.poll() is None and client.said == "" and scene.seen(client.name).processes == 1


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
    pretender.hold()
    eventually(lambda: scene.seen("x").memory_used_mib == 64, "the lease is on the pretender's account")

    assert scene.seen("b").memory_used_mib == held
    assert scene.seen("x").processes == 1
    pretender.send(MessageType.RELEASE, a=1 << 40)
    eventually(lambda: scene.seen("x").processes == 0, "the pretender is cut off")
    watched = 1  # the pretender's process, which lives on and may hold what it reserved
    eventually(lambda: scene.descriptors() <= descriptors + watched, "descriptors sent along are closed")
    assert unharmed(scene, neighbour)
    pretender.close()
