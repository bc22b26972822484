"""What is no module is not loaded, and a kernel that has parameters is not launched without them."""

import pytest

GARBAGE = {
    "text": b"hello, world\0",
    "bytes": bytes(range(1, 200)) + b"\0",
    "nothing": b"\0\0\0\0",
    "an ELF file that ends early": b"\x7fELF\x02\x01\x01" + bytes(9) + b"\xff" * 48,
}


@pytest.mark.parametrize("image", GARBAGE.values(), ids=GARBAGE)
def test_what_is_no_image_is_not_loaded(clients, tmp_path, image):
    """cuModuleLoadData, cuLibraryLoadData and cuModuleLoad of something else answer CUDA_ERROR_INVALID_IMAGE."""
    path = tmp_path / "image"
    path.write_bytes(image)
    codes = clients().run(f"""
open_gpu(); image = {image!r}
answer([code(d.cuModuleLoadData(image)), code(d.cuLibraryLoadData(image, [], [], 0, [], [], 0)),
        code(d.cuModuleLoad({bytes(path)!r}))])
""")

    assert [200, 200, 200] == codes


PARAMETERS = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry takes_us5( .param .u64 a, .param .u32 b ) { ret; }
.visible .entry takes_none_us5()
{ ret; }
.visible .entry bare_us5 { ret; }
"""
LAUNCH = """
value = ctypes.c_uint64(); params = (ctypes.c_void_p * 8)(*[ctypes.addressof(value)] * 8)
p = ctypes.addressof(params); size = ctypes.c_size_t(16); room = (ctypes.c_char * 16)()
extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(room), 2, ctypes.addressof(size), 0); x = ctypes.addressof(extra)
def go(name, params, extra):
    return code(d.cuLaunchKernel(ck(d.cuModuleGetFunction(m, name)), 1, 1, 1, 1, 1, 1, 0, s, params, extra))
"""


def test_a_kernel_that_has_parameters_is_not_launched_without_them(clients):
    """A launch with neither kernelParams nor extra, or with both, is CUDA_ERROR_INVALID_VALUE for such a kernel."""
    seen = clients().run(f"""
open_gpu(); s = ck(d.cuStreamCreate(1)); m = ck(d.cuModuleLoadData({PARAMETERS.encode()!r})); {LAUNCH.strip()}
answer([[go(b"takes_us5", *given) for given in ((0, 0), (p, x), (p, 0), (0, x))],
        [go(name, 0, 0) for name in (b"takes_none_us5", b"bare_us5")]])
""")

    assert [[1, 1, 0, 0], [0, 0]] == seen
