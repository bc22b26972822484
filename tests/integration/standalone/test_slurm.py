"""A real Slurm of one node, with the files of examples/slurm: its shards are shares of a GPU that Aliquot keeps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rights import rooms
from waiting import eventually

from .stage import Aliquot, end, first_line
from .test_launchers import EXAMPLES, SLURM, Machine

sys.path.append(str(EXAMPLES.parent / "tests" / "e2e"))
from cluster import packages
from cluster.cache import Unavailable

pytestmark = rooms
CONF = """
ClusterName=one
SlurmctldHost=node1(10.99.0.1)
SlurmUser=root
AuthInfo=socket={folder}/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
PluginDir={libraries}/slurm-wlm
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu,shard
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
Prolog={folder}/prolog
TaskProlog={slurm}/task-prolog
Epilog={folder}/epilog
NodeName=node1 NodeAddr=10.99.0.1 CPUs=8 Gres=gpu:1,shard:100
PartitionName=all Nodes=node1 Default=YES
"""
# Slurm wants a device; it opens none where it holds no job to its devices.
GRES = "Name=gpu File=/dev/null\nName=shard Count=100\n"
# Namespaces of its own: addresses, processes that end with the first, and the host's name.
ROOM = """
hostname node1 && ip link set lo up && ip addr add 10.99.0.1/32 dev lo && export SLURM_CONF="$0/slurm.conf" || exit
cd "$0" && munged --force --foreground --socket "$0/munge" --key-file "$0/key" --pid-file "$0/munge.pid" \
  --log-file "$0/munge.log" --seed-file "$0/munge.seed" &
until [ -S "$0/munge" ]; do sleep .05; done
slurmctld -D -L "$0/slurmctld.log" & slurmd -D -N node1 -d "$0/bin/slurmstepd" -L "$0/slurmd.log" &
echo started; wait
"""


class Slurm:
    """The cluster of one node; `sbatch` and the other commands run in its namespaces."""

    def __init__(self, tree: Path, machine: Machine, folder: Path) -> None:
        libraries = tree / packages.LIBRARIES
        self.folder, self.environment = folder, machine.environment | {
            "SLURM_CONF": str(folder / "slurm.conf"), "LD_LIBRARY_PATH": f"{libraries}:{libraries}/slurm-wlm",
            "PATH": f"{machine.environment['PATH']}:{folder}/bin:{tree}/usr/bin:{tree}/usr/sbin",
        }  # fmt: skip
        for name in ("state", "spool", "bin"):
            (folder / name).mkdir(parents=True)
        for name in ("slurmctld", "slurmd", "slurmstepd"):  # by their names here they know what they are
            (folder / "bin" / name).symlink_to(tree / "usr" / "sbin" / f"{name}-wlm")
        (folder / "slurm.conf").write_text(CONF.format(folder=folder, slurm=SLURM, libraries=libraries))
        (folder / "gres.conf").write_text(GRES)
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "key").write_bytes(os.urandom(64))
        (folder / "key").chmod(0o600)
        known = "".join(
            f"export {name}='{machine.environment[name]}'\n" for name in ("ALIQUOT_RUNTIME_DIR", "PYTHONPATH")
        )
        for name in ("prolog", "epilog"):  # Slurm starts them without the environment of its daemon
            lines = ["#!/bin/sh", known, f"export ALIQUOT_PATH={machine.folder}", f"{SLURM}/{name} || exit"]
            (folder / name).write_text("\n".join([*lines, f"touch {folder}/{name}-ran\n"]))
            (folder / name).chmod(0o755)
        words = ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._room = subprocess.Popen(
            [*words, "bash", "-c", ROOM, str(folder)], env=self.environment, stdout=subprocess.PIPE, text=True
        )
        assert "started\n" == first_line(self._room)
        (self._first,) = Path(f"/proc/{self._room.pid}/task/{self._room.pid}/children").read_text().split()

    def __call__(self, *words: str) -> str:
        """What a command of Slurm says."""
        inside = ["nsenter", f"--target={self._first}", "--net", "--uts", "--pid"]
        done = subprocess.run([*inside, *words], env=self.environment, capture_output=True, text=True, timeout=30)
        return done.stdout + done.stderr

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        return "\n".join(file.read_text()[-1500:] for file in sorted(self.folder.glob("slurm*.log")))

    def submit(self, shards: int) -> str:
        """Submit a job of one step with so many shards that holds its share until it is cancelled; its number."""
        step = f"srun --gres=shard:{shards} {EXAMPLES}/slurm/aliquot-shard sleep 600"
        words = ("sbatch", "--parsable", f"--output={self.folder}/%j.out", f"--gres=shard:{shards}")
        return self(*words, f"--wrap={step}").strip()

    def close(self) -> None:
        """End everything."""
        end(self._room, signal.SIGKILL)


@pytest.fixture
def machine(engine: Aliquot, tmp_path: Path) -> Machine:
    """A machine with an engine."""
    return Machine(engine, tmp_path)


@pytest.fixture
def slurm(machine: Machine, tmp_path: Path) -> Iterator[Slurm]:
    """Its Slurm, of Debian's packages, whose node is idle."""
    try:
        tree = packages.slurm()
    except Unavailable as error:
        pytest.skip(f"no Slurm here: {error}")
    made = Slurm(tree, machine, tmp_path / "slurm")
    try:
        eventually(lambda: "idle" in made("sinfo", "-h", "-o", "%T"), "the node is idle", 20)
        yield made
    finally:
        print(made("sinfo"), made("scontrol", "show", "node"), made.logs())
        made.close()


def test_jobs_of_slurm_share_a_gpu_by_their_shards(machine: Machine, slurm: Slurm):
    """Two jobs of 30 and 70 shards have 0.3 and 0.7 of one GPU; a third waits until one of them has ended."""
    gres = slurm("scontrol", "show", "node", "node1")
    small, large = slurm.submit(30), slurm.submit(70)
    both = [(f"slurm-{small}-0-0", 300), (f"slurm-{large}-0-0", 700)]
    eventually(lambda: sorted(machine.tenants()) == both, "both have their shares", 60)
    (first, second) = machine.engine.facts("get", "gpus")
    third = slurm.submit(60)
    waits = slurm("squeue", "-h", "-j", third, "-o", "%T")
    slurm("scancel", large)
    after = [(f"slurm-{small}-0-0", 300), (f"slurm-{third}-0-0", 600)]
    eventually(lambda: sorted(machine.tenants()) == after, "the third has its share", 60)
    slurm("scancel", small, third)
    eventually(lambda: not machine.tenants(), "all is free", 60)

    assert "Gres=gpu:1,shard:100" in gres, slurm.logs()
    assert (2, 0, "PENDING\n") == (len(first["tenants"]), len(second["tenants"]), waits)
    assert (slurm.folder / "prolog-ran").exists() and (slurm.folder / "epilog-ran").exists()
