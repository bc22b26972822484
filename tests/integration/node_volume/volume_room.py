"""A node without kubelet: an emulated machine, a real arbiter, tenants, and what a container of one sees."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from kit.arbiter import RunningArbiter
from msgspec.structs import replace

from aliquot.driver.cdi import Mount
from aliquot.driver.native import HOOK, native_part
from aliquot.driver.volume.source import from_root
from aliquot.driver.volume.volume import DriverVolume
from aliquot.kube.plan import ContainerPlan, PodPlan
from aliquot.model.requests import Enforce, Slice
from aliquot.node.allocation.checkpoint import PodKey
from aliquot.node.driver import NodeDriver, emulated_driver
from aliquot.node.machine import Machine, NodeOffer, emulated_machine
from aliquot.node.provisioner import ProvisionedTenant, TenantProvisioner

NODE = "node-1"
OLD, NEW = "570.124.06", "575.57.08"
# What a runtime does with a list of mounts: make the places, bind, make read-only, change root.
RUNTIME = """
import ctypes, json, os, subprocess, sys
scratch, mounts, command = json.loads(sys.argv[1])
def run(*argv): subprocess.run(argv, check=True)
run("mount", "--make-rprivate", "/")
run("mount", "-t", "tmpfs", "scratch", scratch)
for name in ("upper", "work", "root"): os.mkdir(f"{scratch}/{name}")
root = f"{scratch}/root"
run("mount", "-t", "overlay", "-o", f"lowerdir=/,upperdir={scratch}/upper,workdir={scratch}/work", "view", root)
for host, inside, option in mounts:
    place = root + inside
    if os.path.isdir(host): os.makedirs(place, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if not os.path.exists(place): open(place, "w").close()
    run("mount", "--bind", host, place)
    if option == "ro": run("mount", "-o", "remount,bind,ro", place)
run("mount", "-t", "proc", "proc", root + "/proc")
os.chroot(root)
os.chdir("/")
os.execve(command[0], command, {} if not os.environ.get("VIEW_ENV") else json.loads(os.environ["VIEW_ENV"]))
"""


class Room:
    """`provisioned` is that of a container with 0.3 of the first GPU and 512 MiB.

    The driver is emulated and stays in its folder, or, `installed`, the same libraries lie in a root as NVIDIA's do,
    with the kernel module `module` loaded.
    """

    def __init__(self, *, installed: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="aq-"))
        self.emulated = self.folder / "emulated"
        self.root = self.folder / "root"
        self.module = OLD
        self.machine = emulated_machine("v100x2", self.emulated)
        (self.folder / "tenants").mkdir()
        self.arbiter = RunningArbiter(self.folder, "")
        try:
            volume = DriverVolume(self.folder / "driver", native_part(HOOK))
            self.driver = self._installed() if installed else emulated_driver(self.machine, volume)
            self.provisioner = self.agent()
            self.provisioned: ProvisionedTenant = self.take("train")
        except BaseException:
            self.close()
            raise

    @property
    def library(self) -> Path:
        """The tenant's own copy of the hook that stands for libcuda."""
        return Path(self.provisioned.record.socket).parent / "lib" / "libcuda.so.1"

    def agent(self) -> TenantProvisioner:
        """The tenants of an agent that starts."""
        return TenantProvisioner(NODE, NodeOffer(self.machine), self.folder / "tenants", self.folder, self.driver)

    def take(self, pod: str, *, whole: Enforce | None = None, **how: object) -> ProvisionedTenant:
        """The tenant of a pod's only container; of the second GPU, enforced so far, if it has that `whole`."""
        gpu, milli, mib = (self.machine.gpus[1], 1000, 16384) if whole else (self.machine.gpus[0], 300, 512)
        piece = Slice(gpu.uuid, milli, 1000, mib)  # type: ignore[arg-type]
        plan = PodPlan(NODE, {"main": ContainerPlan((piece,), enforce=whole or "all")})
        return self.provisioner.provision(PodKey(f"uid-{pod}", "team", pod), "main", plan, **how)  # type: ignore[arg-type]

    def upgrade(self) -> None:
        """Version NEW is installed, and its kernel module loaded; two looks see it."""
        if self.root.exists():
            self.module = NEW
            self._install(NEW)
        else:
            for path in (self.emulated / "libcuda.so.1", self.emulated / "libnvidia-ml.so.1"):
                fresh = path.with_name("fresh")
                shutil.copyfile(path, fresh)
                fresh.replace(path)
            conf = self.emulated / "emulator.conf"
            conf.write_text(conf.read_text().replace(self.machine.gpus[0].driver, NEW))
        assert self.driver.refresh() is None
        assert self.driver.refresh() is not None
        self._let_the_emulator_run()

    def view(self, provisioned: ProvisionedTenant, program: str, env: dict[str, str]) -> str:
        """What a Python program prints in a container of a tenant, over a copy-on-write root."""
        mounts = [*provisioned.edits.mounts, Mount(Path(sys.base_prefix), Path(sys.base_prefix))]
        if self.root.exists():
            mounts.append(Mount(self.emulated, self.emulated, writable=True))  # in the place of device nodes
        listed = [(str(m.host), str(m.inside), m.body()["options"][0]) for m in mounts]
        scratch = self.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        command = [f"{sys.base_prefix}/bin/python3", "-I", "-S", "-c", program]
        facts = json.dumps([str(scratch), listed, command])
        outer = ["unshare", "--mount", "--pid", "--fork", sys.executable, "-c", RUNTIME, facts]
        around = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "VIEW_ENV": json.dumps(env)}
        done = subprocess.run(outer, capture_output=True, text=True, env=around, timeout=60, check=False)
        if "mount" in done.stderr and ("permission" in done.stderr.lower() or "overlay" in done.stderr):
            pytest.skip(f"no mount namespace with an overlay can be had here: {done.stderr.strip().splitlines()[-1]}")
        assert 0 == done.returncode, done.stderr
        return done.stdout

    def close(self) -> None:
        """Ends everything."""
        self.arbiter.kill()
        shutil.rmtree(self.folder)

    # -- an installed driver ---------------------------------------------------------------------------------------

    def _installed(self) -> NodeDriver:
        self._install(OLD)
        volume = DriverVolume(self.folder / "driver", native_part(HOOK))
        driver = NodeDriver(volume, lambda: from_root(self.root), lambda: self.module)
        self.driver = driver
        gpus = tuple(replace(gpu, driver=OLD) for gpu in self.machine.gpus)
        self.machine = Machine(gpus, volume.link / "origin/lib64/libcuda.so.1", self.machine.libnvml)
        self._let_the_emulator_run()
        return driver

    def _install(self, version: str) -> None:
        place = self.root / "usr/lib/x86_64-linux-gnu"
        place.mkdir(parents=True, exist_ok=True)
        for old in place.iterdir():
            old.unlink()
        for stem in ("libcuda.so", "libnvidia-ml.so"):
            shutil.copyfile(self.emulated / f"{stem}.1", place / f"{stem}.{version}")
            (place / f"{stem}.1").symlink_to(f"{stem}.{version}")

    def _let_the_emulator_run(self) -> None:
        """Mirrored, the emulator finds neither its machine nor its clock beside itself; a real driver needs neither."""
        if self.root.exists():
            for name in ("emulator.conf", "engine.shm"):
                (self.driver.current.origin / "lib64" / name).symlink_to(self.emulated / name)
