"""A container's view, made of a tenant's mounts over a copy-on-write root: plain images find the tenant's library."""

import json

import pytest
from rights import rooms
from volume_room import NEW, OLD, Room

pytestmark = rooms

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
CUDA_IMAGE = {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"}


@pytest.mark.parametrize("env", [{"CUDA_VISIBLE_DEVICES": "0"}, CUDA_IMAGE], ids=["plain", "cuda-image"])
def test_a_container_finds_its_share_with_and_without_a_library_path(any_room: Room, env: dict[str, str]):
    """The loader comes to the tenant's library, the driver behind it answers, and nothing can be overwritten."""
    done, total, writable, maps = json.loads(any_room.view(any_room.provisioned, PROGRAM, env))

    assert (0, 512 << 20, False) == (done, total, writable)
    assert 2 == len(maps), maps
    assert str(any_room.driver.current.libcuda) in maps


ORDER = """
import ctypes, itertools, json, os
NAMES = {"libcuda.so": "cuInit", "libnvidia-ml.so": "nvmlInit_v2"}
missed = []
for name, init in NAMES.items():
    folders = ("", *(f"{path}/" for path in ("/usr/lib64", "/usr/local/nvidia/lib64")))
    spellings = [folder + name + end for folder in folders for end in ("", ".1")]
    for first, second in itertools.product(spellings, repeat=2):
        child = os.fork()
        if not child:
            getattr(ctypes.CDLL(first), init)(0)
            os._exit(0 if hasattr(ctypes.CDLL(second), "aliquot_stats") else 1)
        if os.waitpid(child, 0)[1]:
            missed.append([first, second])
print(json.dumps(missed))
"""


def test_whatever_a_container_opens_first_it_stays_with_the_tenants_library(any_room: Room):
    """For each ordered pair of names and paths of either library, the second open is the tenant's."""
    assert [] == json.loads(any_room.view(any_room.provisioned, ORDER, CUDA_IMAGE))


BARE = PROGRAM.replace("print(", "done = done or hasattr(cuda, 'aliquot_stats')\nprint(")


def test_a_container_with_a_whole_gpu_has_the_bare_driver(room: Room):
    """Its program loads the driver and nothing of ours, and sees the whole GPU; beside it a share is held as ever."""
    provisioned = room.take("whole", whole="never")
    env = dict(entry.split("=", 1) for entry in provisioned.edits.env)

    done, total, _, maps = json.loads(room.view(provisioned, BARE, env))

    assert (False, 16384 << 20) == (done, total)
    assert [str(room.machine.libcuda)] == maps
    assert 512 << 20 == json.loads(room.view(room.provisioned, PROGRAM, {}))[1]


def test_a_container_with_a_whole_gpu_may_keep_its_memory_limit(room: Room):
    """With memory the library stands before the driver, as for a share."""
    provisioned = room.take("whole", whole="memory")
    env = dict(entry.split("=", 1) for entry in provisioned.edits.env)

    done, total, _, maps = json.loads(room.view(provisioned, PROGRAM, env))

    assert (0, 16384 << 20, 2) == (done, total, len(maps))


def test_a_program_that_never_touches_cuda_starts(room: Room):
    """The mounts add files and change none that a program has."""
    assert "ok\n" == room.view(room.provisioned, "import ssl, json; print('ok')", {})


def test_after_an_upgrade_a_restarted_container_has_a_driver_that_the_module_takes(any_room: Room):
    """One that the loaded module would refuse is replaced when the container starts again; an emulated driver has no
    module, and the container keeps its own. Either way it computes."""
    any_room.upgrade()

    provisioned = any_room.take("train", driver=any_room.provisioned.driver)

    done, total, _, maps = json.loads(any_room.view(provisioned, PROGRAM, {}))
    assert (0, 512 << 20) == (done, total)
    version = provisioned.driver.partition("-")[0]
    assert any_room.root.exists() == (version == NEW)
    if any_room.root.exists():
        assert OLD not in "".join(maps)
