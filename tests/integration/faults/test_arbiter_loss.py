"""The arbiter dies while CUDA programs run: what they see, what they get, what is remembered."""

import signal
import sys
import time

import pytest
from stage import WINDOW_S
from waiting import eventually

JOURNAL_NS = 300_000_000  # the ledger is written down four times a second
SILENT_S = 3.0  # after which the hook takes an arbiter without a sign of life for gone
LAST_GRANT_S = 1.3  # a grant of a dead arbiter ends by its deadline


def test_an_arbiter_killed_under_load_costs_no_error(stage):
    """After kill -9 and a restart no program saw an error, each goes on, and what it was charged is known."""
    scene = stage()
    clients = [scene.client(name, request) for name, request in (("a", 300), ("b", 400), ("c", 300))]
    for client in clients:
        client.wait_ready()
    time.sleep(WINDOW_S / 2)
    charged = {c.name: scene.seen(c.name).charged_ns for c in clients}

    scene.kill()
    time.sleep(0.5)
    scene.start()
    eventually(lambda: all(scene.seen(c.name).processes == 1 for c in clients), "all have attached again")
    after = {c.name: scene.seen(c.name).charged_ns for c in clients}
    completed = [client.totals.completed for client in clients]
    eventually(
        lambda: all(client.totals.completed > before for client, before in zip(clients, completed, strict=True)),
        "all go on",
    )

    assert all(after[name] >= charged[name] - JOURNAL_NS for name in charged)
    assert [client.end() for client in clients] == [0, 0, 0]
    assert [client.said for client in clients] == ["", "", ""]


@pytest.mark.real_time
def test_an_arbiter_that_hangs_is_as_good_as_none(stage):
    """Beside an arbiter that is stopped tenants go on at their requests, and share as before once it goes on."""
    scene = stage()
    clients = [scene.client(name, 500).wait_ready() for name in ("a", "b")]
    scene.child.send_signal(signal.SIGSTOP)
    time.sleep(SILENT_S + LAST_GRANT_S)
    without = scene.shares(clients, 1.5)
    scene.child.send_signal(signal.SIGCONT)
    time.sleep(0.5)
    again = scene.charged(clients, 1.5)

    assert min(without) > 0.15, without
    assert min(again) > 0.25, again
    assert [client.end() for client in clients] == [0, 0]
    assert [client.said for client in clients] == ["", ""]


def test_a_program_that_starts_without_an_arbiter_is_told_why(stage):
    """A program that finds no arbiter waits for it, and one line on its error stream says what is missing."""
    scene = stage()
    folder = scene.tenant("a", 500)
    scene.kill()
    argv = [
        sys.executable,
        "-m",
        "aliquot_lab.bench.client",
        "steady",
        "--progress",
        str(scene.directory / "a.progress"),
    ]
    client = scene.program(folder, argv, "a")

    eventually(lambda: client.said, "it says something")
    scene.start()
    client.wait_ready()

    assert 1 == client.said.count("\n")
    assert client.said.startswith("aliquot: no arbiter answers at")
    assert client.end() == 0
