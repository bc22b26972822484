"""What Ray, Slurm, JupyterHub, SkyPilot and dstack are given in examples/, started as each of these starts it."""

import json
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from .stage import Aliquot, end, first_line

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SLURM = EXAMPLES / "slurm"
JOB = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "CUDA_VISIBLE_DEVICES": "0"}
# What the tenant sees: how many GPUs, and the memory of the first.
SEEN = """
import ctypes, os
cuda, count, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_size_t()
cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
print(count.value, total.value >> 20, flush=True)
"""


class Machine:
    """A machine with `aliquot` and python3 on its PATH, where an engine with two emulated V100 is up."""

    def __init__(self, engine: Aliquot, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        (folder / "examples").symlink_to(EXAMPLES)
        (folder / "seen.py").write_text(SEEN)
        programs = {"aliquot": "-m aliquot.cli", "python3": "", "jupyterhub-singleuser": f"{folder}/seen.py"}
        for name, words in programs.items():
            (folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
            (folder / name).chmod(0o755)
        self.environment = engine.env | {"PATH": f"{folder}:{engine.env['PATH']}", "ALIQUOT_PATH": str(folder)}

    def __call__(self, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of the shell to its end."""
        return subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.environment | variables, text=True, capture_output=True,
            timeout=60,
        )  # fmt: skip

    def tenants(self) -> list[tuple[str, int]]:
        """Names and requests, in thousandths, of the tenants that are there now."""
        gpus = self.engine.facts("get", "gpus")
        return [(one["name"], one["request_milli"]) for gpu in gpus for one in gpu["tenants"]]


@pytest.fixture
def machine(engine: Aliquot, tmp_path: Path) -> Machine:
    return Machine(engine, tmp_path)


@pytest.fixture
def job(machine: Machine) -> Iterator[subprocess.Popen[str]]:
    """A step of job 7 with 60 of 100 shards, whose two tasks are one; it goes on until it is ended."""
    step = JOB | {"SLURM_SHARDS_ON_NODE": "60", "SLURM_STEP_TASKS_PER_NODE": "2(x1)", "MEMORY": "2Gi"}
    process = subprocess.Popen(
        [SLURM / "aliquot-shard", "sh", "-c", "python3 seen.py && exec sleep 600"], cwd=machine.folder,
        env=machine.environment | step, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    end(process)


def test_a_worker_of_ray_has_the_share_of_its_actor(machine: Machine):
    """Ray's way to start a worker makes it a tenant with the actor's part of the GPU and its memory."""
    share = runpy.run_path(str(EXAMPLES / "ray" / "aliquot_share.py"))["share"]
    options = share(0.3, "2Gi", "--name", "actor")
    seen = machine(
        f"exec {options['runtime_env']['py_executable']} -c "
        + shlex.quote(SEEN + "import subprocess; subprocess.run('aliquot get gpus -o json', shell=True)"),
        **options["runtime_env"]["env_vars"],
    )
    first, _, gpus = seen.stdout.partition("\n")
    tenants = [tenant for gpu in json.loads(gpus) for tenant in gpu["tenants"]]

    assert ("1 2048", 0.3) == (first, options["num_gpus"]), seen.stderr
    assert [("actor", 300)] == [(one["name"], one["request_milli"]) for one in tenants]


def test_a_task_of_slurm_has_the_share_of_its_shards(machine: Machine, job: subprocess.Popen[str]):
    """Each of two tasks gets half of the step's 60 shards on the GPU that Slurm chose, under the job's name."""
    assert "1 2048\n" == first_line(job)
    assert [("slurm-7-0-0", 300)] == machine.tenants()


def test_a_step_of_slurm_without_shards_is_refused(machine: Machine):
    """The launcher says in one sentence what to ask for."""
    refused = machine(f"{SLURM}/aliquot-shard true", **JOB)

    assert (True, 1) == (refused.returncode > 0, len(refused.stderr.splitlines()))
    assert "srun --gres=shard:30 aliquot-shard" in refused.stderr


def test_slurms_task_prolog_hides_the_gpu_from_programs_without_a_share(machine: Machine):
    """After it a program sees no GPU, and one by the launcher sees the GPU that Slurm chose."""
    task = JOB | {"SLURM_SHARDS_ON_NODE": "30"}
    said = machine(f"{SLURM}/task-prolog", **task).stdout.splitlines()
    given = dict(line.removeprefix("export ").split("=", 1) for line in said)

    assert {"ALIQUOT_SLURM_GPU": "0", "CUDA_VISIBLE_DEVICES": ""} == given
    assert "1 " == machine(f"{SLURM}/aliquot-shard python3 seen.py", **task | given).stdout[:2]
    assert "" == machine(f"{SLURM}/task-prolog", **JOB).stdout


def test_slurms_prolog_needs_an_engine(machine: Machine, tmp_path: Path):
    """It succeeds where an engine is up, and fails with one sentence where none is, so that Slurm drains the node."""
    without = machine(f"{SLURM}/prolog", ALIQUOT_RUNTIME_DIR=str(tmp_path / "none"))

    assert 0 == machine(f"{SLURM}/prolog").returncode
    assert (1, True) == (without.returncode, "no engine shares the GPUs" in without.stderr.splitlines()[-1])


def test_slurms_epilog_waits_for_the_shares_of_its_job(machine: Machine, job: subprocess.Popen[str]):
    """It ends when the job has no share any more; another job's share does not hold it."""
    assert job.stdout is not None and job.stdout.readline()
    other = machine(f"{SLURM}/epilog", SLURM_JOB_ID="8")
    epilog = subprocess.Popen([SLURM / "epilog"], env=machine.environment | JOB, stderr=subprocess.PIPE, text=True)
    waits = epilog.poll() is None
    job.terminate()
    epilog.communicate(timeout=30)

    assert (0, True, 0) == (other.returncode, waits, epilog.returncode)
    assert [] == machine.tenants()


def test_a_server_of_jupyterhub_has_a_share(machine: Machine):
    """The command of the configuration gives each person's server 4 GiB of a GPU, and passes on the Hub's options."""
    spawner, hub = SimpleNamespace(), SimpleNamespace()
    settings = SimpleNamespace(Spawner=spawner, JupyterHub=hub)
    runpy.run_path(str(EXAMPLES / "jupyter" / "jupyterhub_config.py"), {"get_config": lambda: settings})
    seen = machine(shlex.join([*spawner.cmd, "--port=0"]))

    assert ("1 4096\n", 0) == (seen.stdout, seen.returncode), seen.stderr


@pytest.mark.parametrize(("file", "field"), [("sky.yaml", "run"), ("third.dstack.yml", "commands")])
def test_the_commands_of_a_launchers_file_run_with_their_shares(machine: Machine, file: str, field: str):
    """What SkyPilot and dstack run on the machine gives each program its memory; installing is left out here."""
    commands = yaml.safe_load((EXAMPLES / "launchers" / file).read_text())[field]
    lines = [commands] if isinstance(commands, str) else [line for line in commands if "pip install" not in line]
    done = machine("\n".join(lines))

    assert 0 == done.returncode, done.stderr
    assert {"4096 MiB"} <= {line.rpartition(", ")[2] for line in done.stdout.splitlines()}
