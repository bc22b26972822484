"""An eager training loop in PyTorch that runs two steps ahead: `torch_steps.py PROGRESS`."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path

import torch
from stepping import Steps
from torch import nn

AHEAD = 2
RATE = 0.01


def main(path: Path) -> None:
    """Train until SIGTERM."""
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).cuda()
    weights, inputs, in_flight = list(net.parameters()), torch.randn(32, 64, device="cuda"), deque()

    def step() -> torch.cuda.Event:
        # By hand: torch.optim imports the compiler with its first step, which takes a busy machine many seconds.
        gradients = torch.autograd.grad(net(inputs).square().mean(), weights)
        with torch.no_grad():
            torch._foreach_add_(weights, gradients, alpha=-RATE)
        event = torch.cuda.Event()
        event.record()
        return event

    step().synchronize()
    steps = Steps(path)
    steps.done()
    while steps.go_on():
        in_flight.append(step())
        if len(in_flight) > AHEAD:
            in_flight.popleft().synchronize()
            steps.done()
    torch.cuda.synchronize()
    steps.note()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
