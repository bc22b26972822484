"""A PyTorch training loop until SIGTERM: `train.py PROGRESS [graphs]`.

A small network on random data, Adam, a loss that is read every tenth step. Steps are counted in the progress file; with
`graphs` forward, backward and optimiser are one captured CUDA graph.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import torch
from torch import nn

from aliquot_lab.bench.progress import ProgressWriter

stop = False


def tell(_number, _frame):
    global stop
    stop = True


def main(path: Path, graphs: bool) -> None:
    signal.signal(signal.SIGTERM, tell)
    torch.manual_seed(1)
    progress = ProgressWriter(path)
    model = nn.Sequential(
        nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)
    ).cuda()
    optimiser = torch.optim.Adam(model.parameters(), capturable=graphs)
    x = torch.randn(2048, 2048, device="cuda")
    y = torch.randint(10, (2048,), device="cuda")
    loss = torch.zeros((), device="cuda")

    def step():
        nonlocal loss
        optimiser.zero_grad(set_to_none=not graphs)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()

    run = capture(step) if graphs else step
    run()
    torch.cuda.synchronize()
    progress.ready()
    first = float(loss.detach())
    while not stop:
        for _ in range(10):
            run()
        last = float(loss.detach())
        progress.launched += 10
        progress.completed += 10
        progress.store()
    sys.exit(0 if last < first else 3)


def capture(step):
    """The step as one graph, after the warm-up on a side stream that PyTorch asks for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


if __name__ == "__main__":
    main(Path(sys.argv[1]), "graphs" in sys.argv[2:])
