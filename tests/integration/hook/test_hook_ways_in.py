"""Ways into the driver: which programs the hook reaches."""

import pytest

WAYS = {
    "plain": "cuda = Cuda()",
    "deepbind": "cuda = Cuda(lambda n: ctypes.CDLL(n, mode=os.RTLD_NOW | os.RTLD_DEEPBIND))",
    "global": "cuda = Cuda(lambda n: ctypes.CDLL(n, mode=ctypes.RTLD_GLOBAL))",
    "dlmopen": """
def load(name):
    opener = ctypes.CDLL(None).dlmopen
    opener.restype = ctypes.c_void_p
    opener.argtypes = [ctypes.c_long, ctypes.c_char_p, ctypes.c_int]
    handle = opener(-1, name.encode(), 2)
    assert handle
    return ctypes.CDLL(name, handle=handle)
cuda = Cuda(load)
""",
}
SEE = "\ntotal = ctypes.c_size_t(); cuda.lib.cuDeviceTotalMem_v2(ctypes.byref(total), 0); say(total=total.value >> 20)"


@pytest.mark.parametrize("way", WAYS)
def test_substitution_reaches_every_way_of_loading(tenant, way):
    """Where our file stands for the driver's, no way of opening it leads around."""
    scene = tenant(memory_mib=512)

    program = scene.run(WAYS[way] + SEE)

    assert program.read()["total"] == 512


@pytest.mark.parametrize(("way", "reached"), [("plain", True), ("global", True), ("deepbind", True)])
def test_preload_reaches_what_asks_dlsym(tenant, way, reached):
    """Preloaded, the hook holds every program that looks its functions up by dlsym."""
    scene = tenant(memory_mib=512)

    program = scene.run(WAYS[way] + SEE, mode="preload")

    assert (program.read()["total"] == 512) is reached


def test_an_empty_environment_changes_nothing(tenant):
    """`env -i` does not lead around a substituted file that is opened by its place."""
    scene = tenant(memory_mib=512)
    paths = scene.environment("library-path")["PYTHONPATH"]
    scene.environment = lambda mode: {"PYTHONPATH": paths}
    library = str(scene.folder.lib / "libcuda.so.1")

    program = scene.run(f"cuda = Cuda(lambda name: ctypes.CDLL({library!r}))" + SEE)

    assert program.read()["total"] == 512


@pytest.mark.parametrize("mode", ["library-path", "preload"])
def test_a_child_after_fork_and_exec_is_held_too(tenant, mode):
    """A program started from one that used the GPU is a process of the tenant like any other."""
    scene = tenant(memory_mib=512, auto_grant=True)
    program = scene.run(
        "import subprocess\ncuda = Cuda(); spin = cuda.spin(); cuda.launch(spin, 1000)\n"
        f"code = {('from client import *' + chr(10) + WAYS['plain'] + SEE)!r}\n"
        "print(subprocess.run([sys.executable, '-c', code], stdout=-1, text=True).stdout, end='', flush=True)",
        mode=mode,
    )

    assert program.read()["total"] == 512


def test_a_forked_child_neither_hangs_nor_disturbs(tenant):
    """The child of a fork may end and exec; the parent's connection stays its own."""
    scene = tenant(auto_grant=True)
    program = scene.run(
        "cuda = Cuda(); spin = cuda.spin(); cuda.launch(spin, 1000)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    total = ctypes.c_size_t(); cuda.lib.cuDeviceTotalMem_v2(ctypes.byref(total), 0); os._exit(7)\n"
        "status = os.waitpid(pid, 0)[1]\n"
        "say(status=os.waitstatus_to_exitcode(status), again=cuda.launch(spin, 1000), sync=cuda.sync())"
    )

    assert program.read() == {"status": 7, "again": 0, "sync": 0}


def test_without_a_record_substitution_is_not_ready(tenant):
    """A tenant whose record is gone gets SYSTEM_NOT_READY from cuInit, not an unlimited GPU."""
    scene = tenant()
    (scene.folder.directory / "tenant.conf").unlink()

    program = scene.run("say(init=Cuda(context=False).init)")

    assert program.read() == {"init": 802}


def test_without_a_record_preload_passes_through(tenant):
    """A preloaded library without a tenant's record leaves the driver as it is."""
    scene = tenant(memory_mib=512)
    (scene.folder.directory / "tenant.conf").unlink()

    program = scene.run(WAYS["plain"] + SEE, mode="preload")

    assert program.read()["total"] > 10_000


def test_preload_keeps_dlsym_as_it_was(tenant):
    """dlsym and dlvsym of other names, RTLD_DEFAULT and RTLD_NEXT included, answer as without us."""
    scene = tenant()
    program = scene.run(
        """
        libc = ctypes.CDLL(None)
        find = libc.dlsym; find.restype = ctypes.c_void_p; find.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        at = libc.dlvsym; at.restype = ctypes.c_void_p
        at.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
        say(default=find(None, b"getpid") == ctypes.cast(libc.getpid, ctypes.c_void_p).value,
            next=bool(find(ctypes.c_void_p(-1), b"getpid")), none=find(None, b"no_such_function"),
            versioned=at(None, b"getpid", b"GLIBC_2.2.5") == ctypes.cast(libc.getpid, ctypes.c_void_p).value)
        """,
        mode="preload",
    )

    assert program.read() == {"default": True, "next": True, "none": None, "versioned": True}
