"""`aliquot move`: what runs goes to another GPU and does not notice; whatever is killed, it is on one of the two."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import eventually

from .stage import Aliquot, Cluster, end, engine_of, sharepod
from .test_machine_engine import accounts_cannot_start
from .test_park import NOTEBOOK, compute, said
from .test_park_kills import Steps, alive, steps_of

BORROWER, LATER = (Path(__file__).parent / "programs" / name for name in ("borrower.py", "later.py"))
STEPS = ("revoke", "drain", "lock", "checkpoint", "change", "restore", "unlock", "go on")


@pytest.fixture
def up(aliquot_cli: Aliquot, tmp_path: Path):
    """An engine with two emulated GPUs of 16 GiB."""
    with engine_of(aliquot_cli, "v100x2", "--no-web"):
        yield Cluster(aliquot_cli, tmp_path)


def movable(up: Cluster, folder: Path, words: str = "", name: str = "a") -> Path:
    """A SharePod that holds memory and may be moved, and starts another program once it is asked to; its file."""
    cells = folder / f"{name}.cells"
    cells.write_text("0")
    script = f"{sys.executable} {NOTEBOOK} {cells} {words} & exec {sys.executable} {LATER} {folder / name}"
    pod = json.loads(sharepod(name, script, request=0.3, memory="10Gi"))
    pod["metadata"]["annotations"] = {"aliquot.dev/movable": "true"}
    up.apply(json.dumps(pod))
    eventually(lambda: said(cells) == "held", "it has its memory", 30)
    return cells


def on_devices(up: Cluster) -> dict[str, int]:
    """What the arbiter says that each GPU's tenants hold, in MiB."""
    gpus = json.loads(up.command("top", "--once", "-o", "json").stdout)["gpus"]
    return {gpu["uuid"]: sum(tenant["memory_used_mib"] for tenant in gpu["tenants"]) for gpu in gpus}


@pytest.mark.parametrize("words", ["", "busy"])
def test_a_program_goes_to_another_gpu_and_does_not_notice(up: Cluster, tmp_path: Path, words: str):
    """There and back, idle or busy: its memory is as it was, and a program that begins later is where the tenant is."""
    cells = movable(up, tmp_path, words)
    compute(cells)
    here, there = (gpu["uuid"] for gpu in json.loads(up.command("get", "gpus", "-o", "json").stdout))
    seen = []
    for index, uuid in ((1, there), (0, here)):
        moved = up.command("move", "a", "--gpu", str(index))
        compute(cells)
        (tmp_path / "a.go").write_text(str(index))
        eventually(lambda index=index: (tmp_path / f"a.{index}").exists(), "the later program has looked", 30)  # type: ignore[misc]
        seen.append((moved.stdout.strip(), up.pod("a")["gpus"], (tmp_path / f"a.{index}").read_text()))
        held = on_devices(up)

        assert held[uuid] > 300 and not sum(mib for gpu, mib in held.items() if gpu != uuid)
    assert [
        (f"sharepod/a moved to GPU {index}: 10.0 GiB", [index], uuid) for index, uuid in ((1, there), (0, here))
    ] == seen


def test_a_move_that_may_not_be_is_refused_in_a_sentence(up: Cluster, tmp_path: Path):
    """Nothing has changed then."""
    cells = movable(up, tmp_path)
    up.apply(sharepod("b", "sleep 60", request=0.9, memory="4Gi"))
    up.wait_phase("b", "Running")
    refused = [
        up.command("move", name, "--gpu", gpu).stderr
        for name, gpu in (("a", "0"), ("a", "1"), ("a", "2"), ("a", "0,1"), ("b", "0"))
    ]

    for text, why in zip(
        refused,
        ["is on GPU 0 already", "0.1", "there is no GPU", "a move is to one GPU", "is not movable"],
        strict=True,
    ):
        assert why in text and text.count("\n") == 1
    compute(cells)
    assert [0] == up.pod("a")["gpus"]


def test_the_moves_that_let_a_request_start_are_named_and_do(up: Cluster, tmp_path: Path):
    """What waits for a whole GPU starts once the command that explain prints has been run."""
    cells = movable(up, tmp_path)
    up.apply(sharepod("b", "sleep 60", request=0.8, memory="4Gi"))
    up.wait_phase("b", "Running")
    up.command("resize", "b", "--gpu-request", ".5")
    up.apply(sharepod("c", "sleep 60", request=1))
    told = up.command("explain", "c").stdout.splitlines()[-1]
    words = told.removeprefix("Moves: aliquot ").split()
    moved = up.command(*words)

    assert ["move", "default/a", "--gpu", "1"] == words and 0 == moved.returncode, moved.stderr
    assert "Running" == up.wait_phase("c", "Running")["phase"]
    compute(cells)


@pytest.fixture
def steps() -> Iterator[Steps]:
    """The machine's engine with a notebook that may be moved."""
    yield from steps_of("v100x2", "--movable")


@pytest.mark.skipif(accounts_cannot_start(), reason="needs root, and the Python of the machine's engine")
@pytest.mark.parametrize("victim", ["engine", "arbiter", "tenant", pytest.param("helper", marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_a_kill_after_any_step_of_a_move_loses_nothing(steps: Steps, victim: str):
    """The program is on one of the two GPUs as ledger, arbiter and device say it, and works; the other is empty."""
    for step in STEPS:
        compute(steps.cells)
        steps.stop_at(step)
        (place,) = steps.root.facts("get", "tenants")[0]["gpus"]
        command = steps.root.start("move", steps.name, "--gpu", str(1 - place))
        steps.wait_stopped(step)
        steps.kill(victim)
        command.communicate(timeout=90)
        if victim == "tenant":
            assert steps.run is not None
            steps.run.communicate(timeout=60)
            steps.check()
            steps.notebook()
        else:
            steps.need()
            done = f"{steps.cells.read_text()} as it was"
            eventually(lambda done=done: said(steps.cells) == done, f"it computes after a kill at {step}", 60)  # type: ignore[misc]
        steps.check()
        assert steps.run is not None and alive(steps.run.pid)


def test_what_is_lent_on_the_other_gpu_is_called_back_for_a_move(up: Cluster, tmp_path: Path):
    """The borrower there gives back what is needed; neither program notices more than that."""
    cells, borrower = movable(up, tmp_path, "8"), tmp_path / "b.said"
    share = ("--gpu", "1", "--gpu-request", ".3", "--gpu-mem", "2Gi", "--gpu-mem-limit", "15.5Gi")
    run = up.command.start(
        "run", "--name", "b", *share, "--", sys.executable, str(BORROWER), str(borrower), "15", "gives"
    )
    eventually(lambda: borrower.exists() and "has 15" in borrower.read_text(), "it has what is lent", 30)
    moved = up.command("move", "a", "--gpu", "1")
    compute(cells)
    end(run)

    assert (0, "") == (moved.returncode, moved.stderr)
    assert [1] == up.pod("a")["gpus"] and "gave back" in borrower.read_text()
