"""`aliquot park` and `unpark`: GPU memory of what is idle goes to others, and comes back before a program notices."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import eventually

from .stage import Aliquot, Cluster, end, engine_of, first_line, sharepod

BARE = """
import sys
from kit.driver_calls import OwnDriver
gpu = OwnDriver()
assert gpu.open() == 0
gpu.new("cuMemAlloc_v2", int(sys.argv[1]) << 30)
print("held", flush=True)
sys.stdin.read()
"""
TESTS = Path(__file__).parents[2]
NOTEBOOK = Path(__file__).parent / "programs" / "notebook.py"


@pytest.fixture
def up(aliquot_cli: Aliquot, tmp_path: Path):
    """An engine with one emulated GPU of 16 GiB."""
    with engine_of(aliquot_cli, "v100", "--no-web"):
        yield Cluster(aliquot_cli, tmp_path)


def notebook(
    up: Cluster, folder: Path, name: str = "a", memory: str = "10Gi", words: str = "", after: str = ""
) -> Path:
    """A SharePod of a program that computes whenever its file says so; the file."""
    cells = folder / f"{name}.cells"
    cells.write_text("0")
    script = f"exec {sys.executable} {NOTEBOOK} {cells} {words}"
    pod = json.loads(sharepod(name, script, request=0.1, memory=memory))
    pod["metadata"]["annotations"] = {"aliquot.dev/park-after": after} if after else {}
    up.apply(json.dumps(pod))
    eventually(lambda: said(cells) == "held", f"{name} has its memory", 30)
    return cells


def said(cells: Path) -> str:
    """The program's last word."""
    answer = cells.with_suffix(".said")
    return answer.read_text() if answer.exists() else ""


def compute(cells: Path) -> None:
    """Have a program use the GPU, and compare all of its memory with what it wrote there."""
    number = int(cells.read_text()) + 1
    cells.write_text(str(number))
    eventually(lambda: said(cells) == f"{number} as it was", "it computes", 30)


def test_a_parked_program_gives_its_memory_and_has_it_back_at_its_next_call(up: Cluster, tmp_path: Path):
    """Another has the memory meanwhile; pools, mappings and a graph are as they were, byte for byte."""
    cells = notebook(up, tmp_path)
    compute(cells)
    parked = up.command("park", "a", "-o", "json")
    state = up.pod("a")
    up.apply(sharepod("b", "sleep 60", memory="14Gi"))
    other = up.wait_phase("b", "Running")
    up.command("delete", "b")
    compute(cells)

    assert json.loads(parked.stdout)["memory_mib"] > 400
    assert (True, "Running") == (state["parked"], other["phase"])
    assert not up.pod("a").get("parked")


def test_a_monitor_in_the_program_leaves_it_parked(up: Cluster, tmp_path: Path):
    """NVML is answered while the memory is away, and only a call of the driver brings it back."""
    cells = notebook(up, tmp_path, words="watched")
    up.command("park", "a")

    def watched() -> int:
        return int(cells.with_suffix(".watched").read_text() or 0)

    before = watched()
    eventually(lambda: watched() > before + 20, "NVML answers", 30)
    still = up.pod("a").get("parked")
    compute(cells)

    assert still
    assert not up.pod("a").get("parked")


def test_a_call_waits_for_room(up: Cluster, tmp_path: Path):
    """A parked program that needs the GPU while others hold it waits, which is shown, and comes back when they end."""
    cells = notebook(up, tmp_path)
    up.command("park", "a")
    up.apply(sharepod("b", "sleep 60", memory="14Gi"))
    up.wait_phase("b", "Running")
    cells.write_text("1")
    eventually(lambda: "waits for room" in up.command("top", "--once").stdout, "top says so", 30)
    refused = up.command("unpark", "a")
    still = said(cells)
    up.command("delete", "b")

    assert (1, "held") == (refused.returncode, still)
    assert "no room to come back" in refused.stderr
    eventually(lambda: said(cells) == "1 as it was", "it is back", 30)


def test_unpark_parks_others_as_the_programs_next_call_would(up: Cluster, tmp_path: Path):
    """Where the memory is held by one that may be parked and is idle, that one goes."""
    notebook(up, tmp_path, after="10m")
    up.command("park", "a")
    notebook(up, tmp_path, "b", after="10m")
    eventually(lambda: up.command("unpark", "a").returncode == 0, "a is back")

    lines = up.command("get", "tenants").stdout.splitlines()
    assert ["default/b"] == [line.split()[0] for line in lines if "(parked)" in line]


def test_a_run_is_in_no_namespace(up: Cluster):
    """With one, a command about a share means the SharePod there, not the run that has the name alone."""
    run = up.command.start("run", "--gpu-request", ".1", "--gpu-mem", "1Gi", "--name", "r", "--", "sleep", "60")
    eventually(lambda: "tenant/r" in up.command("get", "tenants", "-o", "name").stdout, "it runs")
    refused = [up.command(*words, "r", "-n", "research") for words in (["park"], ["resize", "--gpu-request", ".2"])]
    end(run)

    assert [2, 2] == [one.returncode for one in refused]
    assert all('there is no sharepod or run "research/r"' in one.stderr for one in refused)


@pytest.mark.parametrize(
    ("words", "why"), [("unified", "unified memory"), ("shareable", "memory that it shares"), ("busy", "needs the GPU")]
)
def test_what_cannot_be_parked_is_said_before(up: Cluster, tmp_path: Path, words: str, why: str):
    """A program with memory that the driver does not move, or one that computes, goes on as it was."""
    cells = notebook(up, tmp_path, words=words)
    if words != "busy":
        eventually(lambda: why in up.command("top", "--once", "-o", "json").stdout, "it is known", 10)
    refused = up.command("park", "a")

    assert (1, "") == (refused.returncode, refused.stdout)
    assert why in refused.stderr
    compute(cells)


@contextlib.contextmanager
def bare_program(up: Cluster, gib: int) -> Iterator[None]:
    """A program without a share that holds so much of the GPU."""
    env = os.environ | {"LD_LIBRARY_PATH": str(up.command.runtime / "emulated"), "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(
        [sys.executable, "-c", BARE, str(gib)], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert "held\n" == first_line(program)
        yield
        program.communicate()


def test_a_return_waits_for_memory_that_a_program_without_a_share_holds(up: Cluster, tmp_path: Path):
    """The ledger has room and the GPU has not: nothing is restored and nothing lost, and the reason is shown."""
    cells = notebook(up, tmp_path, words="9")
    up.command("park", "a")
    with bare_program(up, 10):
        refused = up.command("unpark", "a")
        cells.write_text("1")
        eventually(lambda: "without a share" in up.pod("a")["message"], "describe says why", 30)
        explained = up.command("explain", "a").stdout
        still = said(cells)
    eventually(lambda: said(cells) == "1 as it was", "it comes back", 30)
    compute(cells)

    assert (1, "held") == (refused.returncode, still)
    assert re.search(r"5\.\d GiB of its GPU are free and 9\.\d GiB are needed", refused.stderr), refused.stderr
    assert "what Aliquot did not give is held by programs without a share" in explained


def test_a_parked_program_ends_like_any_other(up: Cluster, tmp_path: Path):
    """What is deleted or killed while it is parked leaves nothing, and its place is free."""
    notebook(up, tmp_path)
    up.command("park", "a")
    again, back = up.command("park", "a"), up.command("unpark", "b")
    up.command("delete", "a")
    notebook(up, tmp_path, "c", "14Gi")

    assert (1, 2) == (again.returncode, back.returncode)
    assert "is parked" in again.stderr


def test_eight_notebooks_of_12_gib_take_turns_on_40_gib(aliquot_cli: Aliquot, tmp_path: Path):
    """Where each may be parked all are placed, each computes whenever it is used, and all memory is as it was."""
    with engine_of(aliquot_cli, "a100", "--no-web"):
        up = Cluster(aliquot_cli, tmp_path)
        cells = [notebook(up, tmp_path, f"n{i}", "12Gi", "11", after="1h") for i in range(8)]
        for each in [*cells, *reversed(cells)]:
            compute(each)
        awake = [pod for pod in up.command.facts("get", "pods") if not pod.get("parked")]
        refused = up.apply(sharepod("greedy", "sleep 60", memory="30Gi"))

    assert len(awake) <= 3
    assert "sharepod/greedy created, waits" in refused.stdout  # beside 30 GiB that stay none would come back


def test_what_is_idle_for_its_time_is_parked(up: Cluster, tmp_path: Path):
    """With park-after a program's memory is away after that time, and back at its next call."""
    cells = notebook(up, tmp_path, after="1s")
    eventually(lambda: up.pod("a").get("parked"), "it is parked", 20)
    compute(cells)
    wrong = json.loads(sharepod("b", "sleep 60", memory="1Gi"))
    wrong["metadata"]["annotations"] = {"aliquot.dev/park-after": "soon"}
    refused = up.apply(json.dumps(wrong))

    assert (2, "") == (refused.returncode, refused.stdout)
    assert '"soon" is not a duration' in refused.stderr


def test_two_that_do_not_fit_together_take_turns_by_phase(up: Cluster, tmp_path: Path):
    """Each has nearly the whole GPU; who has yielded is parked once the other acquires, and all memory is as it was."""
    cells = [notebook(up, tmp_path, name, "14Gi", "12 phases") for name in ("trainer", "client")]
    for _ in range(2):
        for each in cells:
            compute(each)
    awake = [pod["name"] for pod in up.command.facts("get", "pods") if not pod.get("parked")]

    assert awake == ["default/client"]


def test_who_has_yielded_stays_while_all_fit(up: Cluster, tmp_path: Path):
    """Scripts say it by a command; nothing is moved for that, until another needs the memory: then without waiting."""
    cells = notebook(up, tmp_path, memory="5Gi")
    command = [sys.executable, "-c", "from aliquot.cli.main import main; main()"]
    yielded = up.command("exec", "a", "--", *command, "yield")
    notebook(up, tmp_path, "b", memory="5Gi")
    before = up.pod("a").get("parked")
    up.apply(sharepod("c", "sleep 60", memory="8Gi"))
    up.wait_phase("c", "Running")
    after = up.pod("a")["parked"]
    late = up.command("exec", "a", "--", *command, "acquire", "--timeout", "100ms")
    up.command("delete", "c")
    acquired = up.command("exec", "a", "--", *command, "acquire")
    outside = up.command("yield")

    assert (before, after, up.pod("a").get("parked")) == (False, True, False)
    assert (yielded.stdout, acquired.stdout) == ("default/a has yielded its GPU\n", "default/a has its GPU\n")
    assert (1, "") == (late.returncode, late.stdout)
    assert "the GPU memory was not back after 0.1 s, and is still waited for: " in late.stderr
    assert (outside.returncode, outside.stdout) == (2, "")
    assert "is of no SharePod and of no run of this engine" in outside.stderr
    compute(cells)


def test_who_cannot_be_parked_cannot_yield(up: Cluster, tmp_path: Path):
    """The call says so in a sentence."""
    cells = tmp_path / "a.cells"
    cells.write_text("0")
    up.apply(sharepod("a", f"exec {sys.executable} {NOTEBOOK} {cells} unified phases", memory="2Gi"))
    eventually(lambda: said(cells), "it has called", 30)

    assert said(cells) == '"default/a" has used unified memory, which the driver does not take off a GPU'


def test_a_waiting_sharepod_is_placed_once_others_have_been_idle(up: Cluster, tmp_path: Path):
    """It need not be applied again: what may be parked makes room within seconds."""
    notebook(up, tmp_path, after="1h")
    up.apply(sharepod("b", "sleep 60", memory="4Gi"))
    up.wait_phase("b", "Running")
    notebook(up, tmp_path, "c", "5Gi", after="1h")

    assert up.pod("a")["parked"]
