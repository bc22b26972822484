"""An engine on a small disk, its programs and runs, a supervisor that starts again what was killed, and random faults.

The processes are told apart by a word in the environment that they were started with, and what must hold is read from
the engine, the arbiter, the emulated device and /proc, none of which is asked about another.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from aliquot.arbiter.client import ArbiterClient, ArbiterError
from aliquot.model.errors import AliquotError
from aliquot.standalone.client import EngineConnection
from aliquot.standalone.paths import RuntimeDir
from aliquot.standalone.wire import Call, GpusCall, InfoCall, PodsCall, TenantsCall

from .stage import FULL, Aliquot, Disk, alive, all_processes, children, environment, read, sharepod

PROGRAMS = Path(__file__).with_name("programs")
GPUS = 2
SETTLED_S = 60.0
"""Everything holds again within this time after a fault; 12 s of it are the engine's patience with a silent arbiter."""
ANSWER_S = 30.0
END_S = 40.0

A = TypeVar("A")


class Broken(AssertionError):
    """Something that must hold whatever happens does not."""


@dataclass
class Run:
    """One `aliquot run`; `killed` is whether a fault ended its runner or its command."""

    name: str
    process: subprocess.Popen[str]
    beats: Path
    killed: bool = False

    @property
    def command(self) -> int:
        """The process of its command; 0 before it is there."""
        return next(iter(children(self.process.pid)), 0)


@dataclass
class Machine:
    """The scene. `disk` holds all files of the engine, `folder` those of the test."""

    disk: Disk
    folder: Path
    mark: str
    engine: subprocess.Popen[str] | None = None
    engine_killed: bool = False
    runs: dict[str, Run] = field(default_factory=dict)
    numbers: int = 0

    def __post_init__(self) -> None:
        self.command = Aliquot(self.disk.folder)
        self.command.env["CHAOS"] = self.mark
        self.pods = self.folder / "team.yaml"
        worker = f"exec {self.worker('train', 900)}"
        stays = "setsid sh -c \"trap '' TERM HUP; sleep 5000\""
        family = f"export SHELL_PID=$$; {self.worker('family', 300)} & {stays} & sleep 5000 & wait"
        documents = [
            sharepod("train", worker, policy="Always", request=0.4, memory="2Gi"),
            sharepod("family", family, policy="Always", request=0.3),
            sharepod("plain", "exec sleep 5000", policy="Always", request=0.2),
            sharepod("waits", "exec sleep 5000", policy="Always", request=2),
        ]
        self.pods.write_text("\n---\n".join(documents))
        self.wanted = {"one": ("0.3", self.worker("one", 500)), "two": ("0.2", self.worker("two", 200) + "; exit $?")}

    def worker(self, name: str, mib: int) -> str:
        """The command of a program that computes."""
        return f"{sys.executable} {PROGRAMS / 'worker.py'} {self.folder / name}.beats {mib}"

    # -- what a supervisor does --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the engine, if it does not run, and the runs.

        Raises:
            Broken: One of them ended by itself.
        """
        if self.engine is not None and self.engine.poll() is not None:
            if not self.engine_killed:
                raise Broken(f"the engine ended by itself with {self.engine.returncode}: {self.said('engine')}")
            self.engine = None
        if self.engine is None:
            self._start_engine()
        for name, run in list(self.runs.items()):
            if run.process.poll() is not None:
                self._judge(run)
                del self.runs[name]
        for name in self.wanted.keys() - self.runs.keys():
            self._start_run(name)

    def _start_engine(self) -> None:
        with (self.folder / "engine.said").open("w") as said:
            self.engine = self.command.start(
                "up", "--emulate", f"v100x{GPUS}", "--window", "2", "--no-web", "-f", str(self.pods),
                stdout=said, stderr=said, cwd=self.folder,
            )  # fmt: skip
        self.engine_killed = False
        wait(lambda: "ready at" in self.said("engine") or self.engine.poll() is not None, "the engine starts", ANSWER_S)  # type: ignore[union-attr]
        if self.engine.poll() is not None:
            said_full = FULL in self.said("engine") and self.said("engine").count("\n") <= 3
            if not (self.disk.is_full and said_full):
                raise Broken(f"the engine did not start: {self.said('engine')}")
            self.engine_killed = True

    def _start_run(self, name: str) -> None:
        request, script = self.wanted[name]
        self.numbers += 1
        full_name = f"{name}-{self.numbers}"
        with (self.folder / f"{name}.said").open("w") as said:
            process = self.command.start(
                "run", "--gpu-request", request, "--gpu-mem", "2Gi", "--name", full_name, "--", "sh", "-c", script,
                stdout=said, stderr=said,
            )  # fmt: skip
        self.runs[name] = Run(full_name, process, self.folder / f"{name}.beats")

    def _judge(self, run: Run) -> None:
        """A run that ended without a fault of its own says why, in one line."""
        said = self.said(run.name.rpartition("-")[0])
        excused = ("the engine", FULL, "the arbiter", " free, ", " is free", "no engine is up")
        if not run.killed and not (said.count("\n") <= 2 and any(word in said for word in excused)):
            raise Broken(f"run {run.name} ended by itself with {run.process.returncode}: {said}")

    def said(self, name: str) -> str:
        """What the engine or a run wrote."""
        return (self.folder / f"{name}.said").read_text()

    # -- what is asked -----------------------------------------------------------------------------------------------

    def ask(self, call: Call[A]) -> A:
        """One call to the engine."""
        with EngineConnection(RuntimeDir(self.disk.folder)) as connection:
            connection._socket.settimeout(ANSWER_S)
            return connection.ask(call)

    def processes(self) -> dict[int, int]:
        """Every process of this machine and its parent."""
        word = f"CHAOS={self.mark}".encode()
        return {pid: parent for pid, parent in all_processes() if word in environment(pid)}

    def targets(self) -> dict[str, int]:
        """What can be stopped and killed now."""
        facts = self.ask(InfoCall())
        found = {"engine": facts.pid, "arbiter": facts.arbiter_pid}
        for pod in self.ask(PodsCall()).pods:
            for container in pod.containers:
                if container.pid:
                    found[f"{pod.name}"] = container.pid
                    found |= {f"{pod.name}'s child {i}": pid for i, pid in enumerate(children(container.pid))}
        for run in self.runs.values():
            found |= {f"runner {run.name}": run.process.pid, f"command {run.name}": run.command}
        return {name: pid for name, pid in found.items() if pid}

    def close(self) -> list[int]:
        """End the engine in order; the processes that are left."""
        assert self.engine is not None
        self.engine.send_signal(signal.SIGTERM)
        for process in [self.engine, *(run.process for run in self.runs.values())]:
            process.wait(END_S)
        return list(self.processes())

    def sweep(self) -> None:
        """Kill all there is, after a failure."""
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


# -- faults ----------------------------------------------------------------------------------------------------------


def fault(machine: Machine, chance: random.Random) -> Iterator[str]:
    """Do something to the machine at random and undo what can be undone; what was done, in words."""
    kind = chance.choices(("stop", "kill", "full"), (4, 4, 2))[0]
    if kind == "full":
        yield "full disk"
        machine.disk.fill()
        try:
            if chance.random() < 0.6:
                yield kill(machine, chance)
                time.sleep(chance.uniform(0.1, 0.5))
                machine.start()
            time.sleep(chance.uniform(0.2, 1.0))
        finally:
            machine.disk.free()
    elif kind == "stop":
        name, pid = chance.choice(sorted(machine.targets().items()))
        seconds = chance.choice((0.1, 0.5, 1.0, 2.5))
        yield f"stop {name} for {seconds} s"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)
    else:
        yield kill(machine, chance)


def kill(machine: Machine, chance: random.Random) -> str:
    name, pid = chance.choice(sorted(machine.targets().items()))
    if name == "engine":
        machine.engine_killed = True
    for run in machine.runs.values():
        run.killed |= run.name in name
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return f"kill {name}"


# -- what must hold --------------------------------------------------------------------------------------------------


def settle(machine: Machine) -> float:
    """Wait until everything holds; seconds that it took.

    Raises:
        Broken: Something ended by itself, or does not hold in time.
    """
    began_s = time.monotonic()
    before = beats(machine)
    while True:
        machine.start()
        try:
            check(machine, before)
        except (AssertionError, AliquotError, ArbiterError, OSError) as error:
            if isinstance(error, Broken) or time.monotonic() > began_s + SETTLED_S:
                raise Broken(f"{type(error).__name__}: {error}") from error
            time.sleep(0.1)
        else:
            return time.monotonic() - began_s


def check(machine: Machine, before: dict[str, bytes]) -> None:
    """PlainLedger agree, programs run or say why not, memory is charged as it is held, and no process is left over."""
    gpus, tenants = machine.ask(GpusCall()).gpus, machine.ask(TenantsCall()).tenants
    reserved = {(gpu.uuid, t.name): (t.request_milli, t.memory_mib) for gpu in gpus for t in gpu.tenants}
    listed = {(s.gpu, t.name): (s.request_milli, s.memory_mib) for t in tenants for s in t.slices}
    assert reserved == listed
    for gpu in gpus:
        milli = sum(part for (uuid, _), (part, _) in reserved.items() if uuid == gpu.uuid)
        mib = sum(part for (uuid, _), (_, part) in reserved.items() if uuid == gpu.uuid)
        assert milli <= 1000 and mib <= gpu.memory_mib, f"GPU {gpu.index} is given twice: {reserved}"
        assert (1000 - milli, gpu.memory_mib - mib) == (gpu.free_milli, gpu.free_mib)
    with ArbiterClient(machine.disk.folder, timeout_s=ANSWER_S) as client:
        status = client.status()
    kept = {(g.uuid, t.name): (t.request_milli, t.memory_limit_mib) for g in status.gpus for t in g.tenants}
    assert reserved == kept
    check_programs(machine, {name for _, name in reserved}, before)
    processes = machine.processes()
    check_memory(machine, {g.uuid: sum(t.memory_used_mib for t in g.tenants) for g in status.gpus}, set(processes))
    check_parents(machine, processes)


def check_programs(machine: Machine, tenants: set[str], before: dict[str, bytes]) -> None:
    """Every SharePod and run has its share and goes on, or its reason not to."""
    expected, computing = {run.name for run in machine.runs.values()}, set(machine.runs)
    pods = {pod.name: pod for pod in machine.ask(PodsCall()).pods}
    assert {f"default/{name}" for name in ("train", "family", "plain", "waits")} == pods.keys()
    for name, pod in pods.items():
        if pod.phase == "Running":
            expected.add(name)
            (container,) = pod.containers
            assert pod.reason == "CrashLoopBackOff" or (container.pid and alive(container.pid)), pod
            if container.pid and name in ("default/train", "default/family"):
                computing.add(name.removeprefix("default/"))
        else:
            assert pod.phase == "Pending" and pod.message, pod
    said = {run.name: machine.said(name) for name, run in machine.runs.items() if run.name not in tenants}
    assert expected == tenants, f"have a share: {tenants}; should: {expected}; said: {said}"
    now = beats(machine)
    assert all(run.process.poll() is None for run in machine.runs.values())
    silent = [name for name in computing if now.get(name, b"") == before.get(name, b"")]
    assert not [name for name in silent if not no_child(machine, name, pods)], f"{silent} do not compute"


def no_child(machine: Machine, name: str, pods: dict) -> bool:
    """Whether a shell goes on without the program that a fault took from it."""
    pod = pods.get(f"default/{name}")
    return name == "family" and pod is not None and not worker_of(pod.containers[0].pid or 0)


def worker_of(pid: int) -> list[int]:
    """The children of a process that compute."""
    return [child for child in children(pid) if b"worker.py" in read(f"/proc/{child}/cmdline")]


def check_memory(machine: Machine, charged: dict[str, int], known: set[int]) -> None:
    """What the arbiter charges is what the device has given, and no other process is on it."""
    library = str(machine.disk.folder / "emulated" / "libnvidia-ml.so.1")
    done = subprocess.run([sys.executable, PROGRAMS / "device.py", library], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for uuid, (used_mib, pids) in json.loads(done.stdout).items():
        assert set(pids) <= known, f"on {uuid} are processes that nobody started: {pids}"
        assert abs(used_mib - charged.get(uuid, 0)) <= len(pids), f"{uuid}: {used_mib} MiB used, {charged} charged"


def check_parents(machine: Machine, processes: dict[int, int]) -> None:
    """Every process descends from the engine or a run that lives, or from the shell of a SharePod that does."""
    assert machine.engine is not None
    roots = {machine.engine.pid, *(run.process.pid for run in machine.runs.values())}
    for pid in processes:
        above = pid
        while above in processes and above not in roots:
            above = processes[above]
        shell = [word for word in environment(pid) if word.startswith(b"SHELL_PID=")]
        lives = any(alive(int(word.partition(b"=")[2])) for word in shell)
        assert above in roots or lives, f"orphan {pid}: {read(f'/proc/{pid}/cmdline')!r}"


def beats(machine: Machine) -> dict[str, bytes]:
    """What each program has last counted."""
    return {path.stem: path.read_bytes() for path in machine.folder.glob("*.beats")}


def wait(true: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Wait until something holds."""
    until_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > until_s:
            raise Broken(f"not in {timeout_s:g} s: {what}")
        time.sleep(0.02)
