"""A server of a language model, built as vLLM is: `serve.py PROGRESS clients|rate AMOUNT TOKENS`.

One pool of memory, nine tenths of what is free, has the keys and values of all requests in blocks. Requests join and
leave the batch between two tokens, and each size of batch has a CUDA graph that decodes one token for each. Steps are
tokens; an interval is a request: arrived, its first token, its last. Answers have up to TOKENS tokens. Requests come
from so many clients that each send one when the last is answered, or at random moments (Poisson), so many a second.
"""

from __future__ import annotations

import random
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import torch
from stepping import Steps
from torch import nn

HEADS, WIDTH, BLOCK, TABLE = 8, 64, 16, 8
"""Heads, their width, tokens of a block of the pool, blocks a request has at most."""
SIZES = (1, 2, 4, 8)
PART = 0.9
PROMPT = (8, 64)
"""Fewest and most tokens."""


@dataclass
class Request:
    """One answer to be made; `blocks` are its places in the pool."""

    arrived_ns: int
    prompt: int
    left: int
    blocks: list[int] = field(default_factory=list)
    first_ns: int = 0


class Model:
    """One layer with attention over the pool."""

    def __init__(self) -> None:
        block_bytes = 2 * BLOCK * HEADS * WIDTH * 2
        count = int(torch.cuda.mem_get_info()[0] * PART) // block_bytes
        half = {"device": "cuda", "dtype": torch.float16}
        self.pool = torch.empty(2, count, BLOCK, HEADS, WIDTH, **half)
        self.free = list(range(count))
        self.embed = nn.Embedding(512, HEADS * WIDTH, **half)
        self.project = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH, **half)
        self.head = nn.Linear(HEADS * WIDTH, 512, **half)
        self.graphs = {size: self._capture(size) for size in SIZES}
        for tokens in range(BLOCK, PROMPT[1] + 1, BLOCK):  # the first time of each length takes the libraries a second
            self._read(tokens)

    def _keep(self, k: torch.Tensor, v: torch.Tensor, places: torch.Tensor) -> None:
        for at, each in enumerate((k, v)):
            self.pool[at].view(-1, HEADS, WIDTH).index_copy_(0, places, each.reshape(-1, HEADS, WIDTH))

    def _decode(self, tokens: torch.Tensor, tables: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(self.embed(tokens)).view(len(tokens), 3, HEADS, WIDTH).unbind(1)
        self._keep(k, v, places)
        keys, values = (self.pool[at][tables].flatten(1, 2).transpose(1, 2) for at in (0, 1))
        seen = nn.functional.scaled_dot_product_attention(q[:, :, None], keys, values)
        return self.head(seen.reshape(len(tokens), -1)).argmax(-1)

    def _capture(self, size: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]:
        tokens, places = (torch.zeros(size, device="cuda", dtype=torch.long) for _ in range(2))
        tables = torch.zeros(size, TABLE, device="cuda", dtype=torch.long)
        self._decode(tokens, tables, places)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tokens.copy_(self._decode(tokens, tables, places))
        return graph, tokens, tables

    def prefill(self, request: Request) -> None:
        """Take blocks and fill them with the prompt, which is padded to whole blocks."""
        request.blocks = [self.free.pop() for _ in range(-(-(request.prompt + request.left) // BLOCK))]
        self._read(-(-request.prompt // BLOCK) * BLOCK)

    def _read(self, count: int) -> None:
        tokens = torch.zeros(count, device="cuda", dtype=torch.long)
        q, k, v = self.project(self.embed(tokens)).view(1, count, 3, HEADS, WIDTH).transpose(1, 3).unbind(2)
        self._keep(k, v, torch.arange(count, device="cuda"))
        nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def token(self, batch: list[Request]) -> None:
        """One token more for each of a batch; waits for them."""
        graph, tokens, tables = self.graphs[next(size for size in SIZES if size >= len(batch))]
        rows = [(request.blocks + [0] * TABLE)[:TABLE] for request in batch]
        tables[: len(rows)].copy_(torch.tensor(rows), non_blocking=True)
        graph.replay()
        tokens.tolist()


class Arrivals:
    """When requests come, and of what length; the same in every run."""

    def __init__(self, way: str, amount: float, tokens: int) -> None:
        self._tokens = tokens
        self._random = random.Random(7)
        self._clients = int(amount) if way == "clients" else 0
        self._per_s = amount
        self._next_ns = time.monotonic_ns()

    def new(self, now_ns: int, unanswered: int) -> list[Request]:
        """Those that have come since the last call."""
        if self._clients:
            return [self._request(now_ns) for _ in range(self._clients - unanswered)]
        found = []
        while self._next_ns <= now_ns:
            found.append(self._request(self._next_ns))
            self._next_ns += int(self._random.expovariate(self._per_s) * 1e9)
        return found

    def _request(self, at_ns: int) -> Request:
        return Request(at_ns, self._random.randint(*PROMPT), self._random.randint(1, self._tokens))


def answered(steps: Steps, model: Model, batch: list[Request]) -> list[Request]:
    """Note a token of each; those that want more."""
    now_ns = time.monotonic_ns()
    for request in batch:
        request.left -= 1
        request.first_ns = request.first_ns or now_ns
        if not request.left:
            model.free.extend(request.blocks)
            steps.progress.interval(request.arrived_ns, request.first_ns, now_ns)
    steps.done(len(batch))
    return [request for request in batch if request.left]


@torch.no_grad()
def main(path: Path, way: str, amount: float, tokens: int) -> None:
    """Serve until SIGTERM."""
    model, waiting, batch = Model(), deque(), []
    steps, arrivals = Steps(path), Arrivals(way, amount, tokens)
    while steps.go_on():
        waiting.extend(arrivals.new(time.monotonic_ns(), len(waiting) + len(batch)))
        while waiting and len(batch) < SIZES[-1]:
            model.prefill(waiting[0])
            batch.append(waiting.popleft())
        if batch:
            model.token(batch)
            batch = answered(steps, model, batch)
        else:
            time.sleep(0.0005)
    torch.cuda.synchronize()
    steps.note()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
