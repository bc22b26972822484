"""NVML without a place for the answer."""

import re
from pathlib import Path

SYMBOLS = Path(__file__).parents[3] / "native/symbols/nvml.def"
TAKES_NONE = {"nvmlErrorString", "nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown"}


def test_null_in_the_place_of_an_answer_is_an_error(clients):
    """Each function answers NULL with INVALID_ARGUMENT or NOT_SUPPORTED, with a device and without one."""
    names = sorted(set(re.findall(r"NVML\((\w+)\)", SYMBOLS.read_text("utf-8"))) - TAKES_NONE)
    seen = clients("h100x2").run(f"""
n = ctypes.CDLL("libnvidia-ml.so.1"); n.nvmlInit_v2(); device = ctypes.c_uint64()
n.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)); seen = []
def call(name, first):
    print(name, file=sys.stderr, flush=True)
    return getattr(n, name)(*(ctypes.c_uint64(each) for each in (first, 0, 0, 0, 0, 0)))
for name in {names!r}:
    if not hasattr(n, name): continue
    takes_device = name.startswith("nvmlDevice") and "GetCount" not in name
    firsts = [0, device.value] if takes_device else [0]
    seen += [[name, code] for first in firsts if (code := call(name, first)) not in (2, 3)]
answer(seen)
""")

    assert [] == seen
