"""Arguments that the driver refuses: the answer under the hook is the driver's own."""

import struct

import pytest
from kit.driver_calls import (
    AS_DESCRIPTOR,
    INVALID_VALUE,
    MIB,
    OUT_OF_MEMORY,
    PAGE,
    PTX,
    Argument,
    Driver,
    Out,
    allocation_node,
    array3d_shape,
    array_shape,
    memory_properties,
    node_parameters,
    pool_properties,
)
from kit.driver_process import DriverProcess

NOT_SUPPORTED = 801
FABRIC, FABRIC_SUPPORTED = 8, 128
MAX, HALF = (1 << 64) - 1, 1 << 63
SIZES = [0, MAX, MAX - 511, HALF, HALF + 1, MAX // 4 * 3, (1 << 50) + 1, 1 << 50]
BIG = 12 * MIB
UNMAPPED = 0xDEADBEEF0000
TEXT = b"no code at all\0"
PLACE, NO_OPTIONS = Out(), (None, None, 0, None, None, 0)
Call = tuple[Argument, ...]


class Subject:
    """A process and what calls with wrong arguments name beside them."""

    def __init__(self, driver: DriverProcess) -> None:
        self.driver = driver
        assert driver.open() == 0
        self.stream, self.pool = driver.stream, driver.new_pool()
        self.module = driver.new("cuModuleLoadData", PTX)
        shown = driver.new_pool(handles=AS_DESCRIPTOR)
        descriptor = driver.call("cuMemPoolExportToShareableHandle", Out(4), shown, AS_DESCRIPTOR, 0).value
        self.imported_pool = driver.new("cuMemPoolImportFromShareableHandle", descriptor, AS_DESCRIPTOR, 0)
        self.no_code = descriptor_path(driver, TEXT)
        self.short = two_letters_before_nothing(driver)

    def sized(self, size: int) -> dict[str, int]:
        """The answers to allocations of this size."""
        said = {name: self.driver.code(name.split()[0], *arguments) for name, arguments in self._sized(size).items()}
        driver = self.driver
        for name, parameters in (("MemAlloc", allocation_node(size)), ("", node_parameters(size))):
            graph = driver.new("cuGraphCreate", 0)
            said[f"node {name}"] = driver.code(f"cuGraphAdd{name}Node", PLACE, graph, None, 0, Out(start=parameters))
            driver.ok("cuGraphDestroy", graph)
        driver.ok("cuStreamBeginCapture_v2", self.stream, 2)
        said["captured"] = driver.code("cuMemAllocAsync", PLACE, size, self.stream)
        driver.call("cuStreamEndCapture", self.stream, PLACE)
        return {f"{name} {size:#x}": code for name, code in said.items()}

    def _sized(self, size: int) -> dict[str, Call]:
        low = min(size, 0xFFFFFFFF)
        return {
            "cuMemAlloc_v2": (PLACE, size),
            "cuMemAllocManaged": (PLACE, size, 1),
            "cuMemAllocPitch_v2 width": (PLACE, PLACE, size, 4, 4),
            "cuMemAllocPitch_v2 height": (PLACE, PLACE, 4, size, 4),
            "cuMemAllocAsync": (PLACE, size, self.stream),
            "cuMemAllocAsync_ptsz": (PLACE, size, self.stream),
            "cuMemAllocFromPoolAsync": (PLACE, size, self.pool, self.stream),
            "cuMemCreate": (PLACE, size, memory_properties(), 0),
            "cuArrayCreate_v2": (PLACE, array_shape(size, 4)),
            "cuArrayCreate_v2 height": (PLACE, array_shape(1, size)),
            "cuArray3DCreate_v2": (PLACE, array3d_shape(4, 4, size)),
            "cuMipmappedArrayCreate": (PLACE, array3d_shape(size, 4, 0), 1),
            "cuMemAlloc": (PLACE, low),
            "cuMemAllocPitch": (PLACE, PLACE, low, 4, 4),
        }

    def answers(self, *, fill: bool) -> dict[str, int]:
        """All answers; those to what is not a size with the memory full."""
        said: dict[str, int] = {}
        for size in SIZES:
            said |= self.sized(size)
        for size in (1, PAGE - 1, PAGE + 1, PAGE + 512, 6 * PAGE + 4096):
            said[f"cuMemCreate {size:#x}"] = self.driver.code("cuMemCreate", PLACE, size, memory_properties(), 0)
        while self.driver.allocate("linear", 64 << 10).code == 0 and fill:
            pass
        for name, arguments in (WRONG | self.wrong()).items():
            said[name] = self.driver.code(name.split()[0], *arguments)
        for name, arguments in NODES.items():
            graph = self.driver.new("cuGraphCreate", 0)
            place, into, dependencies, count, parameters = arguments
            into = graph if into is None else into
            call = place, into, dependencies, count, Out(start=parameters)
            said[f"node {name}"] = self.driver.code("cuGraphAddMemAllocNode", *call)
            self.driver.ok("cuGraphDestroy", graph)
        return said

    def wrong(self) -> dict[str, Call]:
        """Wrong handles and images, which are of the process."""
        stream, pool = self.stream, self.pool
        return {
            "cuMemAllocAsync NULL": (None, BIG, stream),
            "cuMemAllocFromPoolAsync NULL": (None, BIG, pool, stream),
            "cuMemAllocFromPoolAsync pool": (PLACE, BIG, None, stream),
            "cuMemAllocAsync stream of another kind": (PLACE, BIG, pool),
            "cuMemAllocFromPoolAsync stream": (PLACE, BIG, pool, 77),
            "cuMemAllocFromPoolAsync small pool": (PLACE, BIG, 3, stream),
            "cuMemAllocFromPoolAsync wild pool": (PLACE, BIG, UNMAPPED, stream),
            "cuMemAllocFromPoolAsync stream as pool": (PLACE, BIG, stream, stream),
            "cuMemAllocFromPoolAsync imported pool": (PLACE, BIG, self.imported_pool, stream),
            "cuModuleLoadData short": (PLACE, self.short),
            "cuModuleLoad text": (PLACE, self.no_code),
            "cuLibraryLoadFromFile text": (PLACE, self.no_code, *NO_OPTIONS),
            "cuModuleGetFunction NULL": (None, self.module, "spin_ns"),
            "cuModuleGetFunction name": (PLACE, self.module, None),
            "cuModuleGetGlobal_v2 name": (PLACE, None, self.module, None),
            "cuModuleEnumerateFunctions NULL": (None, 1, self.module),
        }


def descriptor_path(driver: DriverProcess, data: bytes) -> str:
    """The path of a file with this in it."""
    descriptor = driver.posix("memfd_create", "data")
    driver.posix("write", descriptor, data)
    return f"/proc/self/fd/{descriptor}"


def two_letters_before_nothing(driver: Driver) -> int:
    """The address of a text of two letters, with nothing mapped behind it."""
    pages = driver.long("mmap", None, 8192, 3, 0x22, -1, 0)
    driver.ok("mprotect", pages + 4096, 4096, 0)
    driver.write(pages + 4093, b"no\0")
    return pages + 4093


def physical(kind: int = 1, handles: int = 0, where: int = 1, device: int = 0) -> Call:
    return PLACE, 6 * PAGE, memory_properties(kind=kind, handles=handles, where=where, device=device), 0


def multicast(devices: int = 1, size: int = PAGE, flags: int = 0) -> Call:
    return PLACE, struct.pack("4Q", devices, size, 1, flags)


def array3d(width: int, height: int, depth: int, flags: int) -> Call:
    return PLACE, array3d_shape(width, height, depth, flags)


WRONG: dict[str, Call] = {
    "cuMemAlloc_v2 NULL": (None, BIG),
    "cuMemAllocManaged NULL": (None, BIG, 1),
    "cuMemAllocManaged flags": (PLACE, BIG, 77),
    "cuMemAllocPitch_v2 NULL": (None, PLACE, BIG, 4, 4),
    "cuMemAllocPitch_v2 pitch": (PLACE, None, BIG, 4, 4),
    "cuMemAllocPitch_v2 element": (PLACE, PLACE, BIG, 4, 3),
    "cuMemAllocAsync stream": (PLACE, BIG, 77),
    "cuMemAllocAsync wild stream": (PLACE, BIG, UNMAPPED),
    "cuMemAllocAsync_ptsz stream": (PLACE, BIG, 77),
    "cuMemCreate NULL": (None, *physical()[1:]),
    "cuMemCreate prop": (PLACE, BIG, None, 0),
    "cuMemCreate flags": (PLACE, BIG, memory_properties(), 1),
    "cuMemCreate device": physical(device=9),
    "cuMemCreate type": physical(kind=0),
    "cuMemCreate negative type": physical(kind=-1),
    "cuMemCreate fabric": physical(handles=FABRIC),
    "cuMemCreate handle type": physical(handles=0x40),
    "cuMemCreate location": physical(where=0),
    "cuMemCreate location 77": physical(where=77),
    "cuArrayCreate_v2 NULL": (None, array_shape(1 << 18, 12)),
    "cuArrayCreate_v2 desc": (PLACE, None),
    "cuArrayCreate_v2 format": (PLACE, array_shape(1 << 18, 12, 0x77)),
    "cuArrayCreate_v2 channels": (PLACE, array_shape(1 << 18, 12, channels=3)),
    "cuArray3DCreate_v2 NULL": (None, array3d_shape(1 << 18, 12, 0)),
    "cuArray3DCreate_v2 flags": array3d(1 << 18, 12, 0, 0x4000),
    "cuArray3DCreate_v2 no height": array3d(1 << 18, 0, 12, 0),
    "cuArray3DCreate_v2 cube": array3d(1 << 11, 1 << 11, 5, 4),
    "cuArray3DCreate_v2 oblong cube": array3d(1 << 11, 1 << 10, 6, 4),
    "cuArray3DCreate_v2 layers of a cube": array3d(1 << 10, 1 << 10, 7, 5),
    "cuArray3DCreate_v2 no layers": array3d(1 << 18, 12, 0, 1),
    "cuArray3DCreate_v2 gather": array3d(1 << 18, 12, 2, 8),
    "cuMipmappedArrayCreate NULL": (None, array3d_shape(9, 9, 0), 1),
    "cuMipmappedArrayCreate levels": (*array3d(1 << 18, 12, 0, 0), 0),
    "cuMipmappedArrayCreate flags": (*array3d(1 << 18, 12, 0, 0x4000), 3),
    "cuMipmappedArrayCreate cube": (*array3d(1 << 11, 1 << 11, 5, 4), 3),
    "cuMulticastCreate NULL": (None, None),
    "cuMulticastCreate devices": multicast(devices=0),
    "cuMulticastCreate size": multicast(size=PAGE + 1),
    "cuMulticastCreate flags": multicast(flags=1),
    "cuMulticastCreate nothing": multicast(size=0),
    "cuCtxCreate_v2 NULL": (None, 0, 0),
    "cuCtxCreate_v2 device": (PLACE, 0, 9),
    "cuCtxCreate_v2 flags": (PLACE, 0x4000, 0),
    "cuCtxCreate_v2 scheduling": (PLACE, 3, 0),
    "cuCtxCreate_v3 count": (PLACE, None, 2, 0, 0),
    "cuCtxCreate_v3 negative": (PLACE, None, -1, 0, 0),
    "cuCtxCreate_v4 flags": (PLACE, None, 0x4000, 0),
    "cuGreenCtxCreate NULL": (None, None, 0, 1),
    "cuGreenCtxCreate description": (PLACE, None, 0, 1),
    "cuDevicePrimaryCtxRetain NULL": (None, 0),
    "cuDevicePrimaryCtxRetain device": (PLACE, 9),
    "cuModuleLoadData NULL": (None, PTX),
    "cuModuleLoadData image": (PLACE, None),
    "cuModuleLoadData text": (PLACE, TEXT),
    "cuModuleLoad path": (PLACE, "/nowhere"),
    "cuModuleLoadDataEx NULL": (None, PTX, 0, None, None),
    "cuModuleLoadDataEx text": (PLACE, TEXT, 0, None, None),
    "cuModuleLoadFatBinary text": (PLACE, TEXT),
    "cuLibraryLoadData NULL": (None, PTX, *NO_OPTIONS),
    "cuLibraryLoadData text": (PLACE, TEXT, *NO_OPTIONS),
    "cuLibraryLoadFromFile path": (PLACE, "/nowhere", *NO_OPTIONS),
    "cuCtxSetLimit limit": (99, BIG),
    "cuCtxSetLimit stack": (0, MAX),
    "cuCtxSetLimit heap": (2, MAX),
    "cuCtxSetLimit printf": (1, 1 << 50),
    "cuMemFree_v2 of nobody": (12345,),
    "cuMemRelease of nobody": (12345,),
}
# Where the node goes, into which graph (None: a new one), after which nodes, and what it is.
NODES: dict[str, tuple[Argument, int | None, Argument, int, bytes]] = {
    "NULL": (None, None, None, 0, allocation_node(BIG)),
    "wild graph": (PLACE, UNMAPPED, None, 0, allocation_node(BIG)),
    "no graph": (PLACE, 0, None, 0, allocation_node(BIG)),
    "dependencies": (PLACE, None, None, 1, allocation_node(BIG)),
    "dependency": (PLACE, None, struct.pack("Q", UNMAPPED), 1, allocation_node(BIG)),
    "type": (PLACE, None, None, 0, allocation_node(BIG, kind=0)),
    "handles": (PLACE, None, None, 0, allocation_node(BIG, handles=1)),
    "nothing": (PLACE, None, None, 0, allocation_node(0)),
}


@pytest.mark.parametrize("limit_mib", [8, 4096])
@pytest.mark.parametrize("strict", [0, 1])
def test_what_is_invalid_is_answered_by_the_driver(tenant, limit_mib, strict):
    """Sizes of nothing, beyond any memory or unaligned, and other wrong arguments: with the hook as without it.

    With a limit of 8 MiB nothing more can be allocated when the other wrong arguments are tried.
    """
    scene = tenant(memory_mib=limit_mib, spec="h100", extra=(f"strict={strict}",))
    wanted = Subject(scene.bare()).answers(fill=False)
    under_the_hook = scene.driver()
    said = Subject(under_the_hook).answers(fill=limit_mib < 100)

    assert {} == {name: (code, said[name]) for name, code in wanted.items() if said[name] != code}
    assert 0 == under_the_hook.counters()["unbalanced"]


def test_a_context_without_a_place_for_its_handle_is_invalid_whatever_room_there_is(tenant):
    """NULL for the handle and wrong flags are CUDA_ERROR_INVALID_VALUE also where no context would fit."""
    driver = tenant(memory_mib=64, context_mib=300).driver()
    driver.ok("cuInit", 0)
    wrong: list[Call] = [
        ("cuCtxCreate_v2", None, 0, 0),
        ("cuDevicePrimaryCtxRetain", None, 0),
        ("cuGreenCtxCreate", PLACE, None, 0, 1),
        ("cuCtxCreate_v2", PLACE, 0x4000, 0),
        ("cuCtxCreate_v4", PLACE, None, 3, 0),
        ("cuCtxCreate_v3", PLACE, None, 1, 0, 0),
    ]

    assert {INVALID_VALUE} == {driver.code(str(name), *arguments) for name, *arguments in wrong}
    assert OUT_OF_MEMORY == driver.code("cuCtxCreate_v2", PLACE, 0, 0)


def test_what_is_no_pool_is_charged_nothing(tenant):
    """An allocation from a stream, or from an address without a pool, is refused by the driver and leaves no charge."""
    gpu = tenant(memory_mib=256).gpu()

    assert [INVALID_VALUE] * 2 == [gpu.take(bad, MIB).code for bad in (3, gpu.stream)]
    assert 0 == gpu.charged()


def test_a_driver_without_a_fabric_says_so_under_the_hook(tenant):
    """Fabric handles are CUDA_ERROR_NOT_SUPPORTED, the attribute of the device is 0, and nothing stays charged."""
    gpu = tenant(memory_mib=64, spec="h100").gpu()
    codes = [gpu.create(PAGE, handles=handles).code for handles in (FABRIC, AS_DESCRIPTOR | FABRIC)]
    codes.append(gpu.code("cuMemPoolCreate", PLACE, pool_properties(handles=FABRIC)))
    memory = gpu.create(PAGE).value
    codes.append(gpu.code("cuMemExportToShareableHandle", Out(64), memory, FABRIC, 0))
    gpu.ok("cuMemRelease", memory)
    codes.append(gpu.code("cuMemImportFromShareableHandle", PLACE, bytes(64), FABRIC))

    assert [NOT_SUPPORTED] * 5 == codes
    assert (0, 0) == (gpu.call("cuDeviceGetAttribute", Out(4), FABRIC_SUPPORTED, 0).value, gpu.charged())
