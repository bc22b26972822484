"""Answers of programs of another version, some recorded from an earlier one, are one sentence to their reader."""

import socket
import threading
from pathlib import Path
from threading import Lock
from types import SimpleNamespace

import msgspec
import pytest

from aliquot.arbiter.client import ArbiterClient, ArbiterError, TenantGpu, TenantRecord
from aliquot.arbiter.records import WIRE
from aliquot.node.provisioner import TenantProvisioner
from aliquot.standalone.client import EngineRefused, ask
from aliquot.standalone.paths import RuntimeDir
from aliquot.standalone.wire import WIRE as ENGINE_WIRE
from aliquot.standalone.wire import InfoCall

RECORDED = Path(__file__).parents[2] / "data" / "answers_of_bd8c2f9"
RECORD = TenantRecord("a", "/x", [TenantGpu("GPU-00000000-0000-0000-0000-000000000001", 300, 600, 1)])


@pytest.fixture
def answering(tmp_path):
    """Answer everything on a socket in `tmp_path` with one line."""
    listeners = []

    def answer(name: str, line: bytes) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / name))
        listener.listen()
        listeners.append(listener)
        threading.Thread(target=serve, args=(listener, line), daemon=True).start()

    def serve(listener: socket.socket, line: bytes) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(1 << 16)
                connection.sendall(line.rstrip(b"\n") + b"\n")

    yield answer
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def recorded(name: str, **facts: object) -> bytes:
    """An answer of the earlier version, with some fields changed."""
    return msgspec.json.encode(msgspec.json.decode((RECORDED / f"{name}.json").read_bytes()) | facts)


@pytest.mark.parametrize(("facts", "age"), [({}, "older"), ({"wire": 9, "version": "9.0"}, "newer")])
def test_an_arbiter_of_another_protocol_is_named_with_the_remedy(answering, tmp_path, facts, age):
    """Reading and changing both say which side is older, which versions they have, and what to do."""
    answering("status.sock", recorded("arbiter_status", **facts))
    answering("admin.sock", recorded("arbiter_refusal", **facts))
    sentence = rf"the arbiter at .* is {age} than this program \(.*protocol {WIRE}\); restart it: kill \d+"

    with pytest.raises(ArbiterError, match=sentence):
        ArbiterClient(tmp_path).status()
    with pytest.raises(ArbiterError, match=sentence):
        ArbiterClient(tmp_path).add_tenant(RECORD)


def test_a_node_is_unhealthy_beside_an_arbiter_of_another_version(answering, tmp_path):
    """The node's agent gets the sentence as the reason why the arbiter is unavailable."""
    answering("status.sock", recorded("arbiter_status"))
    agent = SimpleNamespace(_arbiter_dir=tmp_path, _tenancy=SimpleNamespace(lock=Lock()))

    assert "is older than this program" in TenantProvisioner.check_arbiter(agent)


def test_fields_that_an_answer_of_this_protocol_does_not_have_are_not_missed(answering, tmp_path):
    """An arbiter of the same protocol need not know the fields that were added since."""
    answering("status.sock", recorded("arbiter_status", wire=WIRE))
    status = ArbiterClient(tmp_path).status()

    assert ("", "default/a") == (status.turns, status.gpus[0].tenants[0].name)


@pytest.mark.parametrize("line", [b"", b"x", b"[]", b'{"wire": 2, "status": 7, "facts": 7}', b'{"wire": "2"}', b"\xff"])
def test_what_is_no_answer_is_an_error_of_one_sentence(answering, tmp_path, line):
    """Whatever an arbiter or an engine answers, its reader gets an error for a person."""
    answering("status.sock", line)
    answering("engine.sock", line)

    with pytest.raises(ArbiterError, match=r"^the arbiter|^an answer"):
        ArbiterClient(tmp_path).status()
    with pytest.raises(EngineRefused, match=r"^the engine|^an answer"):
        ask(RuntimeDir(tmp_path), InfoCall())


@pytest.mark.parametrize(("facts", "age"), [({}, "older"), ({"wire": 9, "version": "9.0"}, "newer")])
def test_an_engine_of_another_protocol_is_named_with_the_remedy(answering, tmp_path, facts, age):
    """Every call to an engine says which side is older, which versions they have, and what to do."""
    answering("engine.sock", recorded("engine_info", **facts))

    with pytest.raises(EngineRefused, match=rf"{age} than this program \(.*protocol {ENGINE_WIRE}\); restart it: kill"):
        ask(RuntimeDir(tmp_path), InfoCall())
