"""`aliquot up` and its dashboard: where it is, who may ask, what it tells of a real engine."""

import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import eventually

from .stage import Aliquot, Served, children_of, end, serving


@pytest.fixture
def served(aliquot_cli: Aliquot) -> Iterator[Served]:
    """`aliquot up` on two emulated GPUs with a dashboard on any free port."""
    with serving(aliquot_cli, "v100x2", "--port", "0") as engine:
        yield engine


def test_the_dashboard_listens_to_this_machine_only(served: Served):
    """It is bound to the loopback address, answers by that name and refuses another."""
    port = int(served.url.rstrip("/").rpartition(":")[2])
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = {words[1].split(":")[0] for words in sockets if words[1].endswith(f":{port:04X}") and words[3] == "0A"}
    asked = urllib.request.Request(served.url, headers={"Host": "gpu.example"})

    assert {"0100007F"} == listening
    with pytest.raises(urllib.error.HTTPError, match="421"):
        urllib.request.urlopen(asked)


def test_temperature_power_and_clocks_are_those_of_nvml(served: Served):
    """Once it was asked, the dashboard reads each GPU's sensors: what the emulated driver answers for a V100."""
    sensors = lambda: [gpu["sensors"] for gpu in served.get("api/v1/gpus")["items"]]  # noqa: E731
    eventually(lambda: all(sensors()), "the sensors are read")

    wanted = {"celsius": 41, "watts": 60.0, "limit_watts": 300.0, "sm_mhz": 1530, "memory_mhz": 877}
    assert [wanted, wanted] == sensors()
    (reader,) = children_of(served.process.pid, "aliquot.driver.sensors")
    end(served.process)
    assert not Path(f"/proc/{reader}").exists()


def test_events_are_told_as_they_come(served: Served):
    """A run that comes and goes, and an arbiter that is replaced, leave their events."""
    served.command("run", "--name", "team/a", "--gpu-request", ".2", "--", "true")
    told = lambda: [(e["subject"], e["text"]) for e in served.get("api/v1/events")["items"]]  # noqa: E731
    eventually(lambda: ("team/a", "gave its place back") in told(), "the events of the run are told")

    assert ("team/a", "has a place") in told()
    before = len(served.get("api/v1/events")["items"])
    for pid in children_of(served.process.pid, "aliquot.arbiter"):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not served.get("api/v1/gpus")["items"][0]["shares"], "the dashboard still answers")
    assert 0 == served.command("run", "--name", "team/b", "--gpu-request", ".2", "--", "true").returncode
    eventually(lambda: ("team/b", "has a place") in told()[before:], "events of the new arbiter are told", 20)


def test_the_ledger_and_the_dashboard_agree(served: Served):
    """What `get tenants` says is what the API says."""
    work = served.command.start("run", "--name", "team/c", "--gpu-request", "1.5", "--", "sleep", "60")
    try:
        eventually(lambda: any(g["shares"] for g in served.get("api/v1/gpus")["items"]), "the run is seen")
        tenants = served.command.facts("get", "tenants")
        gpus = served.get("api/v1/gpus")["items"]
        told = {(gpu["uuid"], share["request_milli"]) for gpu in gpus for share in gpu["shares"]}
    finally:
        end(work)

    assert {(piece["gpu"], piece["request_milli"]) for tenant in tenants for piece in tenant["slices"]} == told
    assert ["shared", "whole"] == sorted(gpu["state"] for gpu in gpus)


def test_without_the_dashboard_nothing_listens(aliquot_cli: Aliquot):
    """--no-web serves SharePods alone."""
    with serving(aliquot_cli, "v100", "--no-web") as engine:
        assert "" == engine.url


def test_open_pages_do_not_keep_an_engine_up(served: Served):
    """An engine that is stopped ends within seconds though somebody watches."""
    port = int(served.url.rstrip("/").rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as watching:
        watching.sendall(b"GET /live/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in watching.recv(4096)
        served.process.terminate()

        assert 0 == served.process.wait(15)
