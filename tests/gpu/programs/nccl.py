"""Two NCCL ranks on one GPU sum a tensor: `nccl.py OUT [PROGRESS]`; it starts its second rank itself.

With PROGRESS they go on until SIGTERM and count their sums there.

NCCL refuses two ranks on one device unless told otherwise; both ranks belong to one tenant and share its grant.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from aliquot_lab.bench.progress import ProgressWriter

os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
os.environ.setdefault("NCCL_IB_DISABLE", "1")


def rank(number: int, store: str, out: str, path: str) -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=number, world_size=2)
    x = torch.full((1 << 20,), float(number + 1), device="cuda")
    for _ in range(20):
        y = x.clone()
        dist.all_reduce(y)
    if path:
        go_on(number, x, path)
    torch.cuda.synchronize()
    if number == 0:
        Path(out).write_text(json.dumps({"right": bool((y == 3).all()), "nccl": str(torch.cuda.nccl.version())}))
    dist.destroy_process_group()


def go_on(number: int, x, path: str) -> None:
    import torch.distributed as dist

    progress = ProgressWriter(Path(path)) if number == 0 else None
    while True:
        dist.all_reduce(x.clone())
        if progress is not None:
            x.sum().item()
            progress.completed += 1
            (progress.store if progress.ready_ns else progress.ready)()


if __name__ == "__main__":
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        path = sys.argv[2] if len(sys.argv) > 2 else ""
        context = mp.spawn(rank, args=(f"{folder}/store", sys.argv[1], path), nprocs=2, join=False)
        signal.signal(signal.SIGTERM, lambda *_: [process.kill() for process in context.processes] and sys.exit(0))
        while not context.join():
            pass
