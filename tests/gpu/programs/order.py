"""Opens the driver by a name that is not its soname, then by its soname: `order.py FIRST OUT [torch]`.

Writes whether the second open reached the hook and, with torch, after how many MiB an allocation was refused.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

STEP_MIB = 256


def torch_refused_at_mib() -> int:
    """MiB that PyTorch could allocate."""
    import torch

    held = []
    try:
        while len(held) < 1000:
            held.append(torch.ones(STEP_MIB << 18, device="cuda"))
    except torch.OutOfMemoryError:
        pass
    return len(held) * STEP_MIB


def main(first: str, out: Path, with_torch: bool) -> None:
    """Open, open again, write."""
    early = ctypes.CDLL(first)
    early.cuInit(0)
    facts: dict[str, object] = {"hook": hasattr(ctypes.CDLL("libcuda.so.1"), "aliquot_stats")}
    if with_torch:
        facts["refused_at_mib"] = torch_refused_at_mib()
    out.write_text(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), "torch" in sys.argv[3:])
