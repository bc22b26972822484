"""Two NCCL ranks on one GPU sum a tensor: `nccl.py OUT`; it starts its second rank itself.

NCCL refuses two ranks on one device unless told otherwise; both ranks belong to one tenant and share its grant.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
os.environ.setdefault("NCCL_IB_DISABLE", "1")


def rank(number: int, store: str, out: str) -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=number, world_size=2)
    x = torch.full((1 << 20,), float(number + 1), device="cuda")
    for _ in range(20):
        y = x.clone()
        dist.all_reduce(y)
    torch.cuda.synchronize()
    if number == 0:
        Path(out).write_text(json.dumps({"right": bool((y == 3).all()), "nccl": str(torch.cuda.nccl.version())}))
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, args=(f"{folder}/store", sys.argv[1]), nprocs=2)
