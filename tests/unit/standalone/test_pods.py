"""What is true of a SharePod when `apply` has returned, and one that cannot be placed beside others that can."""

import json
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from aliquot.arbiter.client import Status
from aliquot.kube.manifest import read_sharepods
from aliquot.model.requests import GpuRequest
from aliquot.placement.machine import NoRoom
from aliquot.standalone import container
from aliquot.standalone.accounts import Account, own_account
from aliquot.standalone.engine import Engine
from aliquot.standalone.pods import Pods, SharePodRun
from aliquot.status.tenants import TenantStatus


def sharepod(name: str) -> str:
    """A SharePod that asks for half a GPU."""
    spec = {"gpu": {"request": 0.5}, "template": {"spec": {"containers": [{"name": "main", "command": ["true"]}]}}}
    metadata = {"name": name, "labels": {"project": "secret"}}
    return json.dumps({"apiVersion": "aliquot.dev/v1alpha1", "kind": "SharePod", "metadata": metadata, "spec": spec})


class Failing:
    """An engine in which a defect shows whenever a tenant is admitted; its ledger takes every request."""

    parked: Mapping[str, str] = {}

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.asked: list[str] = []

    def check_possible(self, *_: Any) -> None:
        """There would be room."""

    def make_room(self, *_: Any) -> None:
        """There is room."""

    def admit(self, name: str, *_: Any, **__: Any) -> NoReturn:
        self.asked.append(name)
        raise self._error

    def pending_mib(self) -> dict[str, int]:
        """Nothing is to be freed."""
        return {}

    lent = pending_mib


@pytest.mark.parametrize("error", [ValueError("bad state"), PermissionError(13, "", "/x"), MemoryError("none")])
def test_an_unforeseen_error_is_the_reason_of_one_sharepod_and_stops_no_other(error):
    """Whatever goes wrong while a SharePod is placed, it waits with that as its reason, and the next is looked at."""
    engine = Failing(error)
    pods = Pods(cast(Engine, engine))
    pods.apply(sharepod("a") + "\n---\n" + sharepod("b"))
    pods.place_waiting()
    assert ["default/a", "default/b"] * 2 == engine.asked
    assert ["Pending", "Pending"] == [facts.phase for facts in pods.facts()]
    assert all(type(error).__name__ in facts.message for facts in pods.facts())


class Parking(Failing):
    """An engine that parks others for as long as a test lets it, before anything has room."""

    def __init__(self) -> None:
        super().__init__(NoRoom("none is left"))
        self.begun, self.ends = threading.Event(), threading.Event()

    def make_room(self, *_: Any) -> None:
        """Park."""
        self.begun.set()
        assert self.ends.wait(60)


@pytest.mark.parametrize("way", ["apply", "place_waiting"])
def test_others_are_answered_while_room_is_made_for_one(way: str):
    """A park takes seconds, in which SharePods can be listed and deleted by others."""
    engine = Parking()
    engine.ends.set()
    pods = Pods(cast(Engine, engine))
    pods.apply(sharepod("a"))
    engine.begun.clear()
    engine.ends.clear()
    work = (lambda: pods.apply(sharepod("b"))) if way == "apply" else pods.place_waiting
    thread = threading.Thread(target=work)
    thread.start()
    assert engine.begun.wait(60)
    facts = pods.facts()
    engine.ends.set()
    thread.join()

    assert ["default/a"] == [pod.name for pod in facts]


class Admitting:
    """An engine with room for everything, whose tenants have no driver."""

    gpus = ()
    injection = "auto"
    parked: Mapping[str, str] = {}

    def __init__(self, folder: Path) -> None:
        self.runtime = SimpleNamespace(logs=folder)
        conf = SimpleNamespace(libcuda=folder / "libcuda.so.1")
        self._tenant = SimpleNamespace(
            folder=SimpleNamespace(conf=conf, directory=folder),
            variables={},
            plan=SimpleNamespace(slices=()),
            owner=own_account(),
        )

    def check_possible(self, *_: Any) -> None:
        """There is room."""

    def make_room(self, *_: Any) -> None:
        """There is room."""

    def admit(self, *_: Any, **__: Any) -> Any:
        """A tenant that holds nothing."""
        return self._tenant

    def release(self, *_: Any, **__: Any) -> None:
        """Nothing to give back."""

    def measure(self) -> None:
        """Nothing is measured."""

    def pending_mib(self) -> dict[str, int]:
        """Nothing is to be freed."""
        return {}

    lent = pending_mib


def test_a_container_has_its_program_when_apply_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """However long the start of a program takes, after `apply` the container is Running and its process id is known.

    Another account sees that it runs, but no process id, and neither labels nor events.
    """

    def slow_start(*_: Any, output: int, new_session: bool, **__: Any) -> subprocess.Popen[bytes]:
        time.sleep(0.3)
        return subprocess.Popen(["sleep", "100"], stdout=output, start_new_session=new_session)

    monkeypatch.setattr(container, "start_program", slow_start)
    pods = Pods(cast(Engine, Admitting(tmp_path)))
    pods.apply(sharepod("a"))
    (only,) = pods.facts()[0].containers
    (shown,) = pods.facts("", Account(61002))
    pods.stop()

    assert "Running" == only.state == shown.containers[0].state
    assert only.pid is not None
    assert ([], None, {}, None) == (shown.events, shown.manifest, shown.labels, shown.containers[0].pid)


def test_apply_returns_when_a_program_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A program that is not there leaves its container waiting for the next attempt, and `apply` is not held up."""

    def no_start(*_: Any, **__: Any) -> NoReturn:
        raise FileNotFoundError(2, "No such file or directory", "true")

    monkeypatch.setattr(container, "start_program", no_start)
    pods = Pods(cast(Engine, Admitting(tmp_path)))
    pods.apply(sharepod("a"))
    (pod,) = pods.facts()
    pods.stop()

    assert None is pod.containers[0].pid
    assert any("cannot be started" in event for event in pod.events)


def test_a_sharepod_whose_programs_were_ended_for_lent_memory_has_an_event():
    """One each time that it happens, however often it is looked at."""
    (spec,) = read_sharepods(sharepod("a"))
    pod = SharePodRun(spec, own_account(), GpuRequest(500))
    for held_mib in (0, 300, 300, 0, 300):
        now = TenantStatus("default/a", 0, 0, 0.0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0, 0, False, lost=(held_mib, ""))
        gpus = [SimpleNamespace(uuid="GPU-0", tenants=[now])]
        pod.note_refusals(cast(Status, SimpleNamespace(gpus=gpus)), [])

    assert 2 == sum("its programs were ended: it held 300 MiB beyond its guarantee" in event for event in pod.events)
