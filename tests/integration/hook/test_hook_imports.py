"""Memory that another process exported: charged to its importer from the import on."""

from __future__ import annotations

# The child imports what the parent makes past the hook, as a process of no tenant does, and lets go at once.
IMPORTS = """
import ctypes as c, multiprocessing.reduction as reduction, socket
here, there = socket.socketpair()
imports = os.fork() == 0
cuda = Cuda(); L = cuda.lib; MIB = 1 << 20
class Location(c.Structure): _fields_ = [("type", c.c_int), ("id", c.c_int)]
class Prop(c.Structure):
    _fields_ = [("type", c.c_int), ("handles", c.c_int), ("location", Location),
                ("win", c.c_void_p), ("flags", c.c_ubyte * 8)]
def held(): return cuda.stats()["reserved_bytes"] // MIB
def info(): L.cuMemGetInfo_v2(c.byref(c.c_size_t()), c.byref(c.c_size_t()))
if imports:
    here.close(); results = []; handles = []
    while there.recv(1):
        descriptor = reduction.recvfds(there, 1)[0]; handle = c.c_uint64()
        results.append(L.cuMemImportFromShareableHandle(c.byref(handle), c.c_void_p(descriptor), 1))
        handles.append(handle); os.close(descriptor); there.send(b"x")
    full = held()
    for handle, result in zip(handles, results):
        if result == 0: assert L.cuMemRelease(handle) == 0
    info(); say(results=results, full=full, end=held()); os._exit(0)
there.close(); driver = c.CDLL(DRIVER)
for mib in (30, 30, 2, 30, 30):
    handle, fd, none = c.c_uint64(), c.c_int(), c.c_uint64(0)
    assert driver.cuMemCreate(c.byref(handle), c.c_size_t(mib * MIB), c.byref(Prop(1, 1, Location(1, 0))), none) == 0
    assert driver.cuMemExportToShareableHandle(c.byref(fd), handle, 1, none) == 0
    here.send(b"x"); reduction.sendfds(here, [fd.value]); assert driver.cuMemRelease(handle) == 0; os.close(fd.value)
    here.recv(1)
here.close(); os.wait()
"""


def test_an_import_is_charged_before_it_is_mapped(tenant):
    """An imported handle counts with all of its memory; one that does not fit is refused; released ones are free."""
    scene = tenant(memory_mib=100)
    program = scene.run(f"DRIVER = {str(scene.machine.directory / 'libcuda.so.1')!r}\n" + IMPORTS)

    assert program.read() == {"results": [0, 0, 0, 0, 2], "full": 92, "end": 0}
