"""Things that are made, asked about and destroyed: levels of arrays, textures, linked images, green contexts."""


def test_levels_halve_and_are_paid_for_together(clients):
    """A mipmapped array of 64 x 32 floats has levels down to 1 x 1, and gives all their memory back."""
    sizes, beyond, cost, left = clients("a100x2", "strict=0").run("""
open_gpu(); before = ck(d.cuMemGetInfo())[0]
desc = d.CUDA_ARRAY3D_DESCRIPTOR(); desc.Width, desc.Height, desc.Depth = 64, 32, 0
desc.Format = d.CUarray_format.CU_AD_FORMAT_FLOAT; desc.NumChannels = 1
m = ck(d.cuMipmappedArrayCreate(desc, 7))
levels = [ck(d.cuArray3DGetDescriptor(ck(d.cuMipmappedArrayGetLevel(m, i)))) for i in range(7)]
cost = before - ck(d.cuMemGetInfo())[0]
beyond = code(d.cuMipmappedArrayGetLevel(m, 7)); ck(d.cuMipmappedArrayDestroy(m))
answer([[[l.Width, l.Height] for l in levels], beyond, cost, before - ck(d.cuMemGetInfo())[0]])
""")

    assert sizes == [[64, 32], [32, 16], [16, 8], [8, 4], [4, 2], [2, 1], [1, 1]]
    assert (beyond, left) == (1, 0)
    assert cost == 512 * (32 + 16 + 8 + 4 + 2 + 1 + 1)


def test_a_copy_goes_into_one_level(clients):
    """Bytes copied into a level come back from it and from no other."""
    same, other = clients().run("""
open_gpu(); desc = d.CUDA_ARRAY3D_DESCRIPTOR(); desc.Width, desc.Height, desc.Depth = 8, 0, 0
desc.Format = d.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8; desc.NumChannels = 1
m = ck(d.cuMipmappedArrayCreate(desc, 2)); levels = [ck(d.cuMipmappedArrayGetLevel(m, i)) for i in range(2)]
ck(d.cuMemcpyHtoA(levels[1], 0, b"wxyz", 4)); out = [bytearray(4), bytearray(4)]
for level, to in zip(levels, out): ck(d.cuMemcpyAtoH(to, level, 0, 4))
answer([bytes(out[1]) == b"wxyz", bytes(out[0]) == b"wxyz"])
""")

    assert (same, other) == (True, False)


def test_linked_images_have_the_kernels_of_all_inputs(clients):
    """The linker joins PTX texts; the module of the result knows the kernels of both."""
    found, missing = clients().run("""
open_gpu(); kind = d.CUjitInputType.CU_JIT_INPUT_PTX
link = ck(d.cuLinkCreate(0, [], []))
for name in (b"first_us5", b"second_us5"):
    text = b".visible .entry " + name + b"(){ret;}\\n\\0"
    ck(d.cuLinkAddData(link, kind, text, len(text), name, 0, [], []))
image, size = ck(d.cuLinkComplete(link)); module = ck(d.cuModuleLoadData(ctypes.string_at(image, size)))
ck(d.cuLinkDestroy(link))
answer([[code(d.cuModuleGetFunction(module, n)) for n in (b"first_us5", b"second_us5")],
        code(d.cuModuleGetFunction(module, b"third"))])
""")

    assert found == [0, 0]
    assert missing == 500


def test_many_copies_in_one_call(clients):
    """cuMemcpyBatchAsync carries out every copy of the batch, in the order of the stream."""
    parts = clients().run("""
open_gpu(); s = ck(d.cuStreamCreate(1)); source, target = ck(d.cuMemAlloc(64)), ck(d.cuMemAlloc(64))
ck(d.cuMemcpyHtoD(source, bytes(range(64)), 64)); ck(d.cuMemsetD8(target, 0, 64))
attributes = d.CUmemcpyAttributes()
attributes.srcAccessOrder = d.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
at = [int(target), int(target) + 32]; come = [int(source) + 8, int(source)]
ck(d.cuMemcpyBatchAsync([d.CUdeviceptr(p) for p in at], [d.CUdeviceptr(p) for p in come], [8, 4], 2,
                        [attributes], [0], 1, s))
ck(d.cuStreamSynchronize(s)); out = bytearray(64); ck(d.cuMemcpyDtoH(out, target, 64))
answer([list(out[:8]), list(out[8:12]), list(out[32:36])])
""")

    assert parts == [list(range(8, 16)), [0] * 4, [0, 1, 2, 3]]


def test_texture_and_surface_objects_remember_what_they_are_of(clients):
    """An object gives its description back; one of nothing, or asked as the other kind, is refused."""
    back, unset, wrong, gone = clients().run("""
open_gpu(); desc = d.CUDA_ARRAY_DESCRIPTOR(); desc.Width, desc.Height, desc.NumChannels = 16, 16, 1
desc.Format = d.CUarray_format.CU_AD_FORMAT_FLOAT; array = ck(d.cuArrayCreate(desc))
made_of = d.CUDA_RESOURCE_DESC(); made_of.resType = d.CUresourcetype.CU_RESOURCE_TYPE_ARRAY
made_of.res.array.hArray = array; how = d.CUDA_TEXTURE_DESC(); how.maxAnisotropy = 8
texture = ck(d.cuTexObjectCreate(made_of, how, None)); surface = ck(d.cuSurfObjectCreate(made_of))
back = [ck(d.cuTexObjectGetTextureDesc(texture)).maxAnisotropy,
        int(ck(d.cuSurfObjectGetResourceDesc(surface)).res.array.hArray) == int(array)]
unset = [code(d.cuTexObjectGetResourceViewDesc(texture)), code(d.cuTexObjectCreate(d.CUDA_RESOURCE_DESC(), how, None))]
wrong = code(d.cuSurfObjectDestroy(d.CUsurfObject(int(texture))))
answer([back, unset, wrong, [code(d.cuTexObjectDestroy(texture)), code(d.cuSurfObjectDestroy(surface))]])
""")

    assert back == [8, True]
    assert unset == [1, 1]
    assert (wrong, gone) == (1, [0, 0])


def test_green_contexts_split_the_multiprocessors(clients):
    """108 SMs split into groups of at least 30; a green context knows its share, runs kernels and frees its context."""
    whole, groups, rest, share, ran, active = clients("a100").run("""
ck(d.cuInit(0)); kind = d.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
whole = ck(d.cuDeviceGetDevResource(0, kind))
groups, count, rest = ck(d.cuDevSmResourceSplitByCount(3, whole, 0, 30))
green = ck(d.cuGreenCtxCreate(ck(d.cuDevResourceGenerateDesc([groups[0]], 1)), 0, 1))
context = ck(d.cuCtxFromGreenCtx(green)); ck(d.cuCtxSetCurrent(context))
stream = ck(d.cuGreenCtxStreamCreate(green, 1, 0)); k = Spinner(stream=stream); e = ck(d.cuEventCreate(0))
k.launch(20_000_000); ck(d.cuGreenCtxRecordEvent(green, e)); early = code(d.cuEventQuery(e))
ck(d.cuEventSynchronize(e))
share = ck(d.cuCtxGetDevResource(context, kind)).sm.smCount; p = ck(d.cuMemAlloc(1 << 20))
active = [ck(d.cuDevicePrimaryCtxGetState(0))[1]]; ck(d.cuGreenCtxDestroy(green))
active.append(ck(d.cuDevicePrimaryCtxGetState(0))[1])
answer([whole.sm.smCount, [g.sm.smCount for g in groups[:count]], rest.sm.smCount, share, early, active])
""")

    assert (whole, groups, rest, share) == (108, [30, 30, 30], 18, 30)
    assert (ran, active) == (600, [1, 0])


def test_the_first_interface_still_works(clients):
    """Programs of CUDA 3 allocate below 4 GiB, set a kernel's block and parameters, and launch it."""
    low, same, took, freed = clients().run("""
open_gpu(); L = ctypes.CDLL("libcuda.so.1"); p = ctypes.c_uint32(); out = (ctypes.c_char * 4)()
r = L.cuMemAlloc(ctypes.byref(p), 4096); low = r == 0 and 0 < p.value < 1 << 32
L.cuMemcpyHtoD(p, b"abcd", 4); L.cuMemcpyDtoH(out, p, 4)
f = ctypes.c_void_p(int(Spinner().function)); ns = ctypes.c_uint64(50_000_000)
assert L.cuFuncSetBlockShape(f, 32, 1, 1) == L.cuParamSetSize(f, 8) == L.cuParamSetv(f, 0, ctypes.byref(ns), 8) == 0
t = time.monotonic(); assert L.cuLaunchGrid(f, 4, 1) == 0; ck(d.cuCtxSynchronize()); took = time.monotonic() - t
answer([low, bytes(out) == b"abcd", took, L.cuMemFree(p)])
""")

    assert (low, same, freed) == (True, True, 0)
    assert took >= 0.05


def test_graph_memory_stays_until_it_is_trimmed(clients):
    """Memory is in use until it is freed, whatever becomes of its graph, and then kept for the next until the trim."""
    used, reserved, free = clients().run("""
open_gpu(); attribute = d.CUgraphMem_attribute
def now(): return [int(ck(d.cuDeviceGetGraphMemAttribute(0, a))) >> 20 for a in (
    attribute.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, attribute.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)]
before = ck(d.cuMemGetInfo())[0]; graph = ck(d.cuGraphCreate(0)); p = d.CUDA_MEM_ALLOC_NODE_PARAMS()
p.poolProps.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
p.poolProps.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; p.bytesize = 64 << 20
ck(d.cuGraphAddMemAllocNode(graph, [], 0, p)); run = ck(d.cuGraphInstantiate(graph, 0)); s = ck(d.cuStreamCreate(1))
ck(d.cuGraphLaunch(run, s)); ck(d.cuStreamSynchronize(s)); steps = [now()]
again = code(d.cuGraphLaunch(run, s)); ck(d.cuGraphExecDestroy(run)); ck(d.cuGraphDestroy(graph)); steps.append(now())
ck(d.cuDeviceGraphMemTrim(0)); steps.append(now()); ck(d.cuMemFreeAsync(p.dptr, s)); ck(d.cuStreamSynchronize(s))
steps.append(now()); ck(d.cuDeviceGraphMemTrim(0)); steps.append(now())
answer([[again, *(s[0] for s in steps)], [s[1] for s in steps], before - ck(d.cuMemGetInfo())[0]])
""")

    assert [1, 64, 64, 64, 0, 0] == used
    assert [64, 64, 64, 64, 0] == reserved
    assert free == 0


def test_a_tensor_map_is_encoded_where_the_gpu_has_the_copy_unit(clients):
    """cuTensorMapEncodeTiled takes aligned arguments on compute capability 9, and answers NOT_SUPPORTED below it."""
    program = """
open_gpu(); p = int(ck(d.cuMemAlloc(1 << 16))); lib = ctypes.CDLL("libcuda.so.1"); room = (ctypes.c_char * 256)()
dims, steps = (ctypes.c_uint64 * 5)(*[64] * 5), (ctypes.c_uint32 * 5)(*[8] * 5)
aligned = -ctypes.addressof(room) % 64
def encode(rank=2, at=p, off=0):
    to = ctypes.c_void_p(ctypes.addressof(room) + aligned + off)
    return lib.cuTensorMapEncodeTiled(to, 0, rank, ctypes.c_void_p(at), dims, dims, steps, steps, 0, 0, 0, 0)
answer([encode(), encode(rank=6), encode(at=p + 8), encode(at=None), encode(off=16)])
"""

    assert clients("h100").run(program) == [0, 1, 1, 1, 1]
    assert clients("a100").run(program) == [801] * 5


def test_a_capture_takes_a_fill_of_any_address(clients):
    """A fill of memory that is not there is captured; launching its graph ends in CUDA_ERROR_ILLEGAL_ADDRESS."""
    captured, direct, launched = clients().run("""
open_gpu(); s = ck(d.cuStreamCreate(1)); ck(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode(2)))
captured = code(d.cuMemsetD8Async(128, 0, 4096, s)); graph = ck(d.cuStreamEndCapture(s))
direct = code(d.cuMemsetD8Async(128, 0, 4096, s))
answer([captured, direct, code(d.cuGraphLaunch(ck(d.cuGraphInstantiate(graph, 0)), s))])
""")

    assert (captured, direct, launched) == (0, 1, 700)
