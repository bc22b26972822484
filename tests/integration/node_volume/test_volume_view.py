"""A container's view, made of the volume's mounts over a copy-on-write root: plain images find the tenant's library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from volume_room import Room

from aliquot.driver.native import HOOK, native_part
from aliquot.node.cdi import Mount
from aliquot.node.volume.source import from_libraries
from aliquot.node.volume.volume import DriverVolume

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
PROGRAM = """
import ctypes, json
cuda, free, total, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
done = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or cuda.cuCtxSetCurrent(context)
done = done or cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
try:
    open("/usr/local/nvidia/lib64/libcuda.so.1", "ab")
    writable = True
except OSError:
    writable = False
maps = sorted({line.split()[-1] for line in open("/proc/self/maps") if "libcuda" in line or "libaliquot" in line})
print(json.dumps([done, total.value, writable, maps]))
"""


def view(room: Room, program: str, env: dict[str, str]) -> str:
    """What a program prints in a container of the room's seat."""
    machine = room.machine
    volume = DriverVolume(room.folder / "volume", native_part(HOOK))
    generation = volume.refresh(from_libraries(machine.libcuda, machine.libnvml, "570.124.06"))
    mine = Path(room.seat.record.socket).parent
    mounts = [Mount(mine, mine), *generation.edits(room.library).mounts, *machine.edits([machine.gpus[0]]).mounts]
    mounts += [Mount(Path(sys.base_prefix), Path(sys.base_prefix))]
    listed = [(str(m.host), str(m.inside), m.body()["options"][0]) for m in mounts]
    scratch = room.folder / "scratch"
    scratch.mkdir()
    command = [f"{sys.base_prefix}/bin/python3", "-I", "-S", "-c", program]
    facts = json.dumps([str(scratch), listed, command])
    outer = ["unshare", "--mount", "--pid", "--fork", sys.executable, "-c", RUNTIME, facts]
    around = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "VIEW_ENV": json.dumps(env)}
    done = subprocess.run(outer, capture_output=True, text=True, env=around, timeout=60, check=False)
    if "mount" in done.stderr and ("permission" in done.stderr.lower() or "overlay" in done.stderr):
        pytest.skip(f"no mount namespace with an overlay can be had here: {done.stderr.strip().splitlines()[-1]}")
    assert 0 == done.returncode, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "env",
    [{"CUDA_VISIBLE_DEVICES": "0"}, {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"}],
    ids=["plain", "cuda-image"],
)
def test_a_container_finds_its_share_with_and_without_a_library_path(room: Room, env: dict[str, str]):
    """The loader comes to the tenant's library, the driver behind it answers, and nothing can be overwritten."""
    done, total, writable, maps = json.loads(view(room, PROGRAM, env))

    assert (0, 256 << 20, False) == (done, total, writable)
    assert 2 == len(maps), maps
    assert str(room.machine.libcuda) in maps


def test_a_program_that_never_touches_cuda_starts(room: Room):
    """The mounts add files and change none that a program has."""
    assert "ok\n" == view(room, "import ssl, json; print('ok')", {})
