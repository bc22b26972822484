"""An ordinary training loop in PyTorch; and filling the memory, as a job does whose batch is too large."""

import json
import select
import sys
import time
from pathlib import Path

import torch
from counters import launches
from torch import nn

DEVICE = "cuda"


def waited_s() -> float:
    """How long threads of this process have been ready to run without a processor."""
    files = Path("/proc/self/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[1]) for file in files) / 1e9


def loop(seconds: float, warm_s: float) -> None:
    """Train for so long after warming up, say how many steps that were, go on until a line or the end comes."""
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(DEVICE)
    optimizer, inputs = torch.optim.SGD(net.parameters(), 0.01), torch.randn(32, 64, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = net(inputs).square().mean()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()

    def until(end_s: float) -> int:
        steps = 0
        while time.monotonic() < end_s:
            step()
            steps += 1
        return steps

    until(time.monotonic() + warm_s)
    start_s, before, idle_s = time.monotonic(), launches()["emulator"], waited_s()
    steps = until(start_s + seconds)
    facts = {"seconds": time.monotonic() - start_s, "steps": steps, "kernels": launches()["emulator"] - before}
    facts["waited_s"], facts["launches"] = waited_s() - idle_s, launches()
    print(json.dumps(facts), flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        step()


def fill(block_mib: int) -> None:
    """Take memory until there is no more, wait for a line, go on with less."""
    blocks, asked_s = [], 0.0
    try:
        while True:
            asked_s = time.monotonic()
            blocks.append(torch.empty(block_mib << 20, dtype=torch.uint8, device=DEVICE))
    except torch.OutOfMemoryError as error:
        facts = {"blocks": len(blocks), "error": str(error)[:60], "refused_s": time.monotonic() - asked_s}
    free, total = torch.cuda.mem_get_info()
    print(json.dumps(facts | {"free_mib": free / 2**20, "total_mib": total / 2**20}), flush=True)
    sys.stdin.readline()
    blocks.clear()
    torch.cuda.empty_cache()
    loop(0.5, 0)


if __name__ == "__main__":
    fill(int(sys.argv[2])) if sys.argv[1] == "fill" else loop(float(sys.argv[2]), float(sys.argv[3]))
