"""What a command says while an engine does not answer."""

import socket
import threading
from pathlib import Path

import pytest

from aliquot.standalone import client
from aliquot.standalone.paths import RuntimeDir
from aliquot.standalone.wire import InfoCall, Ready, encode_answer


def test_an_engine_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """After some seconds of silence a command says what it waits for, and goes on waiting."""
    runtime = RuntimeDir(tmp_path)
    monkeypatch.setattr(client, "SILENCE_S", 0.01)
    said = threading.Event()
    monkeypatch.setattr(client.sys, "stderr", Heard(said))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as engine:
        engine.bind(str(runtime.engine_socket))
        engine.listen()
        threading.Thread(target=_answer, args=(engine, said), daemon=True).start()
        client.ask(runtime, InfoCall())

    assert f"aliquot: the engine at {tmp_path} has not answered for 0.01 s; waiting\n" == client.sys.stderr.text


class Heard:
    """A stderr that tells when something was written to it."""

    def __init__(self, said: threading.Event) -> None:
        self.text = ""
        self._said = said

    def write(self, text: str) -> None:
        self.text += text
        self._said.set()


def _answer(engine: socket.socket, said: threading.Event) -> None:
    connection, _ = engine.accept()
    with connection:
        connection.recv(4096)
        said.wait(10)
        connection.sendall(encode_answer(Ready()))
