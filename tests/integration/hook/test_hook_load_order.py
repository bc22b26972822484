"""Load order: whatever opens the driver first, every later open of it reaches the hook."""

from pathlib import Path

import pytest
from kit.compiling import compile_c

from aliquot.arbiter.abi import MessageType

PROGRAMS = Path(__file__).parent / "programs"
LIBRARIES = {"libcuda": ("cuDeviceTotalMem_v2", "cuInit"), "libnvidia-ml": ("nvmlDeviceGetMemoryInfo", "nvmlInit_v2")}
SPELLINGS = 10
PLUGIN = "extern int {function}(), {init}();\nvoid *address(int first) {{ return first ? {init} : {function}; }}\n"


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Path:
    """The program `opens`, and a plug-in that was linked with each library under each of its names."""
    folder = tmp_path_factory.mktemp("opens")
    compile_c(folder / "opens", PROGRAMS / "opens.c")
    for library, (function, init) in LIBRARIES.items():
        for name in (f"{library}.so", f"{library}.so.1"):
            (folder / "stub").mkdir(exist_ok=True)
            (folder / "stub.c").write_text(f"int {function}() {{ return 0; }}\nint {init}() {{ return 0; }}\n")
            stub = folder / "stub" / name
            compile_c(stub, "-shared", "-fPIC", f"-Wl,-soname,{name}", folder / "stub.c")
            (folder / "plugin.c").write_text(PLUGIN.format(function=function, init=init))
            compile_c(folder / f"plugin-{name}", "-shared", "-fPIC", folder / "plugin.c", stub)
    return folder


def answers(scene, programs: Path, library: str, mode: str) -> dict[tuple[str, str], str]:
    """The file that answers the second open, by the two spellings."""
    function, init = LIBRARIES[library]
    folder = scene.machine.directory if mode == "preload" else scene.folder.lib
    for each in LIBRARIES:
        bare = scene.machine.directory / f"{each}.so"
        if not bare.is_symlink():
            bare.symlink_to(f"{each}.so.1")
    argv = [programs / "opens", library, function, init, folder, programs]
    done = scene.execute([str(part) for part in argv], mode=mode)
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    return {(first, second): file for first, second, file in rows}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("mode", ["library-path", "substitute"])
def test_the_second_open_reaches_the_hook_whatever_the_first_was(tenant, programs, library, mode):
    """For each ordered pair of spellings, the second open reaches the tenant's copy of the hook."""
    scene = tenant()

    seen = answers(scene, programs, library, mode)

    assert {pair: file for pair, file in seen.items() if Path(file).parent != scene.folder.lib} == {}
    assert len(seen) == SPELLINGS**2


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_preloaded_hook_answers_in_its_namespace_whatever_was_opened_first(tenant, programs, library):
    """For each ordered pair of spellings, the second open by dlopen or DT_NEEDED reaches the preloaded hook."""
    scene = tenant()

    seen = answers(scene, programs, library, "preload")

    held = {pair: file for pair, file in seen.items() if pair[1] != "other-namespace"}
    assert {pair: file for pair, file in held.items() if Path(file).parent != scene.folder.lib} == {}
    assert len(held) == SPELLINGS * (SPELLINGS - 1)


@pytest.mark.parametrize("mode", ["library-path", "preload"])
def test_a_library_that_is_closed_and_opened_again_goes_on(tenant, mode):
    """dlclose leaves what the hook has running; a program that opens the library again is held as before."""
    scene = tenant(auto_grant=True, memory_mib=512)
    program = scene.run(
        """
        libc = ctypes.CDLL(None)
        libc.dlclose.argtypes = [ctypes.c_void_p]
        def use():
            cuda, pointer = Cuda(), ctypes.c_uint64()
            allocated = cuda.lib.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20))
            launched = cuda.launch(cuda.spin(), 1000)
            total = ctypes.c_size_t()
            cuda.lib.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
            cuda.lib.cuCtxSynchronize()
            cuda.lib.cuDevicePrimaryCtxReset_v2(0)
            libc.dlclose(cuda.lib._handle)
            return [allocated, launched, total.value >> 20]
        first = use()
        time.sleep(0.3)
        say(seen=[first, use()])
        """,
        mode=mode,
    )

    assert program.read()["seen"] == [[0, 0, 512], [0, 0, 512]]
    assert program.end() == 0


@pytest.mark.parametrize("order", [("libcuda.so.1", "libnvidia-ml.so"), ("libnvidia-ml.so.1", "libcuda.so")])
def test_both_libraries_are_one_hook(tenant, order):
    """A program that opens libcuda and NVML, in either order, has one hook and one connection to the arbiter."""
    scene = tenant(auto_grant=True, memory_mib=512)
    program = scene.run(
        f"""
        first, second = map(ctypes.CDLL, {order!r})
        cuda = Cuda()
        nvml, device, memory = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
        nvml.nvmlInit_v2(); nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
        nvml.nvmlDeviceGetMemoryInfo(device, memory)
        cuda.launch(cuda.spin(), 1000)
        both = [(ctypes.c_uint64 * 64)(64 * 8) for _ in range(2)]
        for library, out in zip((first, second), both):
            library.aliquot_stats(out)
        say(total=memory[0] >> 20, launches=[out[2] for out in both])
        """
    )

    assert program.read() == {"total": 512, "launches": [1, 1]}
    assert scene.arbiter.count(MessageType.HELLO) == 1
