"""A server of a language model that takes memory as vLLM does, without vLLM: `python llm_serve.py --requests 64`.

It takes the part --gpu-memory-utilization of the memory that cudaMemGetInfo reports as the total, refuses to start
where less is free, measures what the model takes at its largest batch, and makes one pool of key and value blocks of
the rest. A request holds as many blocks as its tokens need, takes another when they are full, and gives them back at
its end; when no block is free the youngest request gives up its blocks and starts again later (preemption).

Under a share the total is the share, so the same value is right on any GPU and beside any neighbour:

    aliquot run --gpu-request .3 --gpu-mem 8Gi -- python llm_serve.py --gpu-memory-utilization 0.92

It prints its memory as one line of JSON when it is ready and its counts as another at the end. On an emulated GPU the
tokens are meaningless numbers.
"""

import argparse
import json
import random
import sys
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import nn

LAYERS, HEADS, WIDTH, BLOCK, WORDS = 2, 8, 64, 16, 512
BLOCK_BYTES = LAYERS * 2 * BLOCK * HEADS * WIDTH * 2
"""Keys and values of 16 tokens in half precision, in all layers."""


@dataclass
class Request:
    """An answer of `length` tokens, of which `done` are there; its blocks are places in the pool."""

    prompt: int
    length: int
    done: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def needs(self) -> int:
        """Blocks for all tokens so far and the next."""
        return -(-(self.prompt + self.done + 1) // BLOCK)


class Model(nn.Module):
    """Attention over the pool, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, HEADS * WIDTH)
        self.layers = nn.ModuleList(nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(HEADS * WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor, tables: torch.Tensor, places: torch.Tensor, pool: torch.Tensor):
        """The next token of each request; `tables` are its blocks, `places` where this token's key and value go."""
        hidden = self.embed(tokens)
        for number, layer in enumerate(self.layers):
            q, k, v = layer(hidden).view(len(tokens), 3, HEADS, WIDTH).unbind(1)
            for part, values in enumerate((k, v)):
                pool[number, part].view(-1, HEADS, WIDTH).index_copy_(0, places, values)
            keys, values = (pool[number, part][tables].flatten(1, 2).transpose(1, 2) for part in (0, 1))
            seen = nn.functional.scaled_dot_product_attention(q[:, :, None], keys, values)
            hidden = seen.reshape(len(tokens), -1)
        return self.head(hidden).argmax(-1)


class Engine:
    """The model, its pool, and who has which blocks."""

    def __init__(self, utilization: float, batch: int, model_len: int) -> None:
        self.batch, self.table = batch, -(-model_len // BLOCK)
        free, total = torch.cuda.mem_get_info()
        wanted = int(total * utilization)
        if free < wanted:
            sys.exit(
                f"{free / 2**20:.0f} of {total / 2**20:.0f} MiB are free, fewer than --gpu-memory-utilization "
                f"{utilization:g} takes ({wanted / 2**20:.0f} MiB); take less, or free the rest"
            )
        self.model = Model().half().cuda()
        self._step(torch.empty(LAYERS, 2, self.table, BLOCK, HEADS, WIDTH, dtype=torch.half, device="cuda"), batch)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        outside = free - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()  # context, code, libraries
        # What the largest batch takes for a moment stays in PyTorch's cache, and what it cannot use of its pages too.
        count = (wanted - outside - torch.cuda.max_memory_reserved()) // BLOCK_BYTES
        if count < self.table:
            sys.exit(
                f"{max(0, count)} blocks fit, a request of --max-model-len needs {self.table}; ask for more memory"
            )
        self.pool = torch.empty(LAYERS, 2, count, BLOCK, HEADS, WIDTH, dtype=torch.half, device="cuda")
        self.free = list(range(count))
        self.facts = {"total_mib": total >> 20, "wanted_mib": wanted >> 20, "blocks": count}
        self.facts["used_mib"] = (free - torch.cuda.mem_get_info()[0]) >> 20

    def _step(self, pool: torch.Tensor, size: int, rows: list[list[int]] | None = None, places=None) -> None:
        table = [(row + [0] * self.table)[: self.table] for row in rows or [[]] * size]
        tokens = torch.zeros(size, dtype=torch.long, device="cuda")
        where = torch.tensor(places or [0] * size, device="cuda")
        self.model(tokens, torch.tensor(table, device="cuda"), where, pool).tolist()

    def decode(self, running: list[Request]) -> None:
        """One token more for each."""
        ends = [request.prompt + request.done for request in running]
        places = [r.blocks[end // BLOCK] * BLOCK + end % BLOCK for r, end in zip(running, ends, strict=True)]
        self._step(self.pool, len(running), [request.blocks for request in running], places)
        for request in running:
            request.done += 1

    def grow(self, request: Request) -> bool:
        """Give it the blocks that it needs; False where there are too few."""
        missing = request.needs - len(request.blocks)
        if missing > len(self.free):
            return False
        request.blocks += [self.free.pop() for _ in range(missing)]
        return True

    def release(self, request: Request) -> None:
        """Its blocks are free again."""
        self.free += request.blocks
        request.blocks = []


@torch.inference_mode()
def serve(engine: Engine, waiting: deque[Request]) -> dict[str, int]:
    """Answer all requests: admit, decode, preempt, until none is left."""
    running: list[Request] = []
    counts = {"answered": 0, "tokens": 0, "preempted": 0, "blocks_at_most": 0}
    while waiting or running:
        while waiting and len(running) < engine.batch and engine.grow(waiting[0]):
            running.append(waiting.popleft())
        for request in list(running):
            while request in running and not engine.grow(request):
                youngest = running.pop()
                engine.release(youngest)
                youngest.done = 0
                waiting.appendleft(youngest)
                counts["preempted"] += 1
        counts["blocks_at_most"] = max(counts["blocks_at_most"], sum(len(request.blocks) for request in running))
        engine.decode(running)
        counts["tokens"] += len(running)
        for request in [request for request in running if request.done == request.length]:
            running.remove(request)
            engine.release(request)
            counts["answered"] += 1
    return counts


def main() -> None:
    """Make the pool, answer, report."""
    parser = argparse.ArgumentParser(description="Serves a small language model from a pool of paged memory.")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.92)
    parser.add_argument("--max-num-seqs", type=int, default=8)
    parser.add_argument("--max-model-len", type=int, default=256)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--num-gpu-blocks-override", type=int, help="use no more blocks than this")
    given = parser.parse_args()
    with torch.inference_mode():
        engine = Engine(given.gpu_memory_utilization, given.max_num_seqs, given.max_model_len)
    if given.num_gpu_blocks_override:
        del engine.free[given.num_gpu_blocks_override :]
    print(json.dumps(engine.facts), flush=True)
    dice = random.Random(7)
    half = given.max_model_len // 2
    waiting = deque(Request(dice.randint(1, half), dice.randint(1, half - 1)) for _ in range(given.requests))
    print(json.dumps(serve(engine, waiting) | {"free_blocks": len(engine.free)}), flush=True)


if __name__ == "__main__":
    main()
