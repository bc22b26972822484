# ruff: noqa: F821 - follows client_prelude.py: objects of every kind, and the calls of misuse.txt with bad handles
L = ctypes.CDLL("libcuda.so.1")
KEPT = []
END = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: None)


def call(name, *arguments):
    """The code that a function answers with."""
    return getattr(L, name)(*(ctypes.c_uint64(each) for each in arguments))


def at(data):
    """The address of a text or of 64-bit words; they stay."""
    KEPT.append(ctypes.create_string_buffer(data) if isinstance(data, bytes) else (ctypes.c_uint64 * len(data))(*data))
    return ctypes.addressof(KEPT[-1])


def made(name, *arguments):
    """The handle that a function makes; `None` among the arguments is where it goes, the first place by default."""
    out = ctypes.c_uint64()
    words = list(arguments) if None in arguments else [None, *arguments]
    result = call(name, *(ctypes.addressof(out) if word is None else word for word in words))
    assert result == 0, f"{name}: {result}"
    return out.value


def box(array, at_byte=0):
    """CUDA_MEMCPY3D: a byte of an array to the host."""
    words = [at_byte, *[0] * 24]
    words[4], words[7], words[15], words[16], words[22:] = 3, array, 1, at([0]), [1, 1, 1]
    return at(words)


def plain_box(kind, host):
    """CUDA_MEMCPY3D: a byte of the host, or of a kind of memory that there is not, to the host."""
    words = [0] * 25
    words[4], words[5], words[15], words[16], words[22:] = kind, host, 1, at([0]), [1, 1, 1]
    return at(words)


def partition():
    room = at([0] * 18)
    assert call("cuDeviceGetDevResource", 0, room, 1) == 0
    return made("cuDevResourceGenerateDesc", room, 1)


ONE = 1 | 1 << 32  # two words of 32 bits
NEW = {
    "context": lambda: made("cuCtxCreate_v2", 0, 0),
    "stream": lambda: made("cuStreamCreate", 1),
    "event": lambda: made("cuEventCreate", 0),
    "module": lambda: made("cuModuleLoadData", at(PTX)),
    "function": lambda: made("cuModuleGetFunction", NEW["module"](), at(b"spin_ns")),
    "pool": lambda: made("cuMemPoolCreate", at([1, 1 << 32] + [0] * 9)),
    "memory": lambda: made("cuMemCreate", 2 << 20, at([1, 1, 0, 0]), 0),
    "array": lambda: made("cuArrayCreate_v2", at([16, 0, 0x20 | 1 << 32])),
    "mipmap": lambda: made("cuMipmappedArrayCreate", at([16, 16, 0, 0x20 | 1 << 32, 0]), 2),
    "texture": lambda: made("cuTexObjectCreate", at([0, NEW["array"]()] + [0] * 16), at([0] * 13), 0),
    "surface": lambda: made("cuSurfObjectCreate", at([0, NEW["array"]()] + [0] * 16)),
    "linker": lambda: made("cuLinkCreate_v2", 0, 0, 0, None),
    "green": lambda: made("cuGreenCtxCreate", partition(), 0, 1),
    "partition": partition,
    "graph": lambda: made("cuGraphCreate", 0),
    "node": lambda: made("cuGraphAddEmptyNode", NEW["graph"](), 0, 0),
    "exec": lambda: made("cuGraphInstantiateWithFlags", NEW["graph"](), 0),
    "user": lambda: made("cuUserObjectCreate", 1, ctypes.cast(END, ctypes.c_void_p).value, 1, 1),
}
END_OF = {
    "context": "cuCtxDestroy_v2", "stream": "cuStreamDestroy_v2", "event": "cuEventDestroy_v2",
    "module": "cuModuleUnload", "pool": "cuMemPoolDestroy", "memory": "cuMemRelease", "array": "cuArrayDestroy",
    "mipmap": "cuMipmappedArrayDestroy", "texture": "cuTexObjectDestroy", "surface": "cuSurfObjectDestroy",
    "linker": "cuLinkDestroy", "green": "cuGreenCtxDestroy", "graph": "cuGraphDestroy", "exec": "cuGraphExecDestroy",
}  # fmt: skip
WITH_CONTEXT = ("stream", "event", "module", "function", "array", "mipmap", "texture", "surface")
NULL_IS_BAD = ("cuCtxDestroy_v2", "cuCtxPushCurrent_v2", "cuCtxEnablePeerAccess", "cuCtxGetDevResource")
STRICT_ENDS = ("context", "stream", "event", "module", "function", "pool", "green")


def destroyed(kind):
    """A handle whose object has been destroyed, by itself or with what it belongs to."""
    if kind == "function":
        module = NEW["module"]()
        handle = made("cuModuleGetFunction", module, at(b"spin_ns"))
        assert call("cuModuleUnload", module) == 0
        return handle
    if kind == "node":
        graph = NEW["graph"]()
        handle = made("cuGraphAddEmptyNode", graph, 0, 0)
        assert call("cuGraphDestroy", graph) == 0
        return handle
    handle = NEW[kind]()
    assert (call("cuUserObjectRelease", handle, 1) if kind == "user" else call(END_OF[kind], handle)) == 0
    ck(d.cuCtxSetCurrent(PRIMARY))
    return handle


def with_context(kind):
    """A handle whose object went with the context that it was made in."""
    context = NEW["context"]()
    handle = NEW[kind]()
    assert call("cuCtxDestroy_v2", context) == 0
    return handle


def bad_handles(kind, strict):
    """Each with a word for it."""
    yield "NULL", 0
    yield "small", 3
    yield "unmapped", 0xDEADBEEF0000
    yield "kernel space", 0xFFFF_8000_0000_0010
    yield "own memory", at([0] * 8)
    yield "beside a good one", NEW[kind]() + 8
    yield "other kind", NEW["event" if kind != "event" else "stream"]()
    if not (strict and kind in STRICT_ENDS):
        if kind in END_OF or kind in ("function", "node", "user"):
            yield "destroyed", destroyed(kind)
        if kind in WITH_CONTEXT:
            yield "destroyed context", with_context(kind)


def words(text, handle):
    """The arguments of a line of misuse.txt."""
    zeros, function = at([0] * 64), NEW["function"]()
    call("cuFuncSetBlockShape", function, 1, 1, 1), call("cuParamSetSize", function, 8)
    kernel = [ONE, ONE, ONE, at([zeros]), 0, 0, 0]
    named = {
        "H": handle, "o": at([0] * 64), "zeros": zeros, "p": int(ck(d.cuMemAlloc(4096))), "name": at(b"spin_ns"),
        "args": at([zeros]), "end": ctypes.cast(END, ctypes.c_void_p).value, "ready": function,
        "config": at([ONE, ONE, ONE, 0, 0, 0, 0]), "box": box(handle), "plain": box(NEW["array"]()),
        "resource": at([0, handle] + [0] * 16), "levels": at([1, handle] + [0] * 16), "list": at([handle]),
        "kernel": at([handle, *kernel]), "wellkernel": at([function, *kernel]), "fill": at([0, 0, 1 << 32, 1, 1]),
        "host": at([ctypes.cast(END, ctypes.c_void_p).value, 0]),
        "square": at([1 << 40, 1 << 40, 0x20 | 4 << 32]), "cube": at([1 << 21, 1 << 21, 1 << 21, 0x20 | 1 << 32, 0]),
        "formless": at([16, 16, 0x77 | 1 << 32]), "channelless": at([16, 16, 0x20 | 3 << 32]),
        "beyond": box(NEW["array"](), 2**64 - 1), "fromnull": plain_box(1, 0), "fromnothing": plain_box(9, at([0])),
    }  # fmt: skip
    return [named[w] if w in named else NEW[w]() if w in NEW else int(w) for w in text]


def wrong(lines, strict):
    """The calls that did not answer as misuse.txt says."""
    seen, kind, code = [], "", 0
    for line in lines:
        text, _, own = line.partition(" > ")
        name, *arguments = text.split()
        if name in NEW:
            kind, code = name, int(arguments[0])
            continue
        expected = int(own or code)
        for how, handle in bad_handles(kind, strict):
            if how == "NULL" and (kind == "stream" or (kind == "context" and name not in NULL_IS_BAD)):
                continue  # the default stream, the current context
            if how == "NULL" and name == "cuOccupancyMaxActiveClusters":
                continue  # as cuSOLVER asks
            print(f"{text} with {how}", file=sys.stderr, flush=True)
            got = call(name, *words(arguments, handle))
            if got != expected and not (how == "destroyed context" and got == 709):
                seen.append(f"{text}, {how}: {got} instead of {expected}")
            ck(d.cuCtxSetCurrent(PRIMARY))
    return seen


def missing(lines):
    """The calls that did not answer as nulls.txt says, and those that without a context answered with no such error."""
    seen = []
    for line in lines:
        text, _, own = line.partition(" > ")
        name, *arguments = text.split()
        print(text, file=sys.stderr, flush=True)
        given, expected = words(arguments, 0), int(own or 1)
        got = call(name, *given)
        ck(d.cuCtxSetCurrent(None))
        bare = call(name, *given)
        ck(d.cuCtxSetCurrent(PRIMARY))
        if got != expected or bare not in (expected, 201):
            seen.append(f"{text}: {got} instead of {expected}, {bare} without a context")
    return seen


def survived(names):
    """All of these calls, with zeros for all arguments, and the number of them that came back."""
    for name in names:
        made("cuDevicePrimaryCtxRetain", None, 0)
        ck(d.cuCtxSetCurrent(PRIMARY))
        print(name, file=sys.stderr, flush=True)
        call(name, *[0] * 12)
    return len(names)


PRIMARY = open_gpu()
