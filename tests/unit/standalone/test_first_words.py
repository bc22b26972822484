"""What several threads decode first: msgspec ends a program in which one describes a struct that another decodes."""

import subprocess
import sys

import pytest

# A struct is described by functions of Python's in msgspec; a thread that calls none of them cannot race.
PROGRAM = """
import socket, sys, tempfile, threading
from pathlib import Path
from aliquot.arbiter.client import ArbiterClient
from aliquot.kube.plan import PLAN, PLAN_APPLIED, read_applied, read_plan
from aliquot.standalone import wire

described = set()
folder = Path(tempfile.mkdtemp())
server = socket.socket(socket.AF_UNIX)
server.bind(str(folder / "status.sock"))
server.listen()


def answer():
    connection, _ = server.accept()
    connection.makefile("rb").readline()
    connection.sendall(b'{"wire": WIRE, "error": "no"}\\n'.replace(b"WIRE", sys.argv[2].encode()))


def call(what):
    threading.Thread(target=answer, daemon=True).start()
    if what == "arbiter":
        try:
            ArbiterClient(folder).status()
        except RuntimeError as error:
            assert str(error) == "no", error
    elif what == "call":
        assert wire.decode_call(b'{"verb":"pods"}') == wire.PodsCall()
    elif what == "answer":
        assert wire.decode_answer(b'{"answer":{"kind":"lines","lines":[]}}') == wire.Lines([])
    else:
        read_applied({PLAN_APPLIED: "{}"})
        read_plan({PLAN: '{"v":1}'})


def seen(frame, *_):
    if "msgspec" in frame.f_code.co_filename:
        described.add(frame.f_code.co_name)


sys.setprofile(seen)
call(sys.argv[1])
sys.setprofile(None)
print(sorted(described))
"""


@pytest.mark.parametrize("what", ["arbiter", "call", "answer", "plan"])
def test_what_threads_decode_is_described_before_there_are_threads(what: str):
    """A call, an answer and a pod's plan are decoded by structs that msgspec knew when the module was loaded."""
    from aliquot.arbiter.records import WIRE

    done = subprocess.run([sys.executable, "-c", PROGRAM, what, str(WIRE)], capture_output=True, text=True)

    assert ("[]\n", 0) == (done.stdout, done.returncode), done.stderr
