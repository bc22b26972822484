"""PyTorch as people use it: each function is a feature."""

from __future__ import annotations

import inspect
import json
import os
import tempfile
import warnings
from pathlib import Path

import torch
from running import counted, feature, main, sys
from torch import nn

# torch.compile else starts a worker that imports PyTorch, and the program's end waits for that, by itself as well.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
DEVICE = "cuda"
BLOCK = 256 << 20


def small_net() -> nn.Module:
    """Two layers on the device."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(DEVICE)


def training(net: nn.Module, inputs: torch.Tensor, steps: int = 3) -> None:
    """A few steps of an optimiser."""
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        net(inputs).float().square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()


@feature
def tensors():
    """Creation, arithmetic, copies there and back, sorting, indexing."""
    there = torch.arange(1000, dtype=torch.float32)
    assert torch.equal(there.to(DEVICE).cpu(), there)
    x = torch.randn(256, 256, device=DEVICE)
    (x + 1).mul_(2).sum(), x.sort(), x.topk(4), x[:, ::2].contiguous()
    torch.cuda.synchronize()
    return {"device": torch.cuda.get_device_name(), "total_mib": torch.cuda.mem_get_info()[1] >> 20}


@feature
def streams_and_events():
    """Work on two streams, ordered by an event and timed by two."""
    x, side = torch.ones(1024, device=DEVICE), torch.cuda.Stream()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(20):
            x.add_(1)
        x.record_stream(side)
    torch.cuda.current_stream().wait_stream(side)
    last.record()
    torch.cuda.synchronize()
    assert first.elapsed_time(last) > 0


@feature
def pinned_memory():
    """Pinned tensors are copied without waiting, both ways, unchanged."""
    there, back = torch.arange(1 << 16).pin_memory(), torch.empty(1 << 16, dtype=torch.int64, pin_memory=True)
    back.copy_(there.to(DEVICE, non_blocking=True), non_blocking=True)
    torch.cuda.synchronize()
    assert there.is_pinned() and torch.equal(there, back)


@feature
def memory_statistics():
    """What the caching allocator reserves is what the driver sees go."""
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    block = torch.empty(BLOCK, dtype=torch.uint8, device=DEVICE)
    assert BLOCK == free - torch.cuda.mem_get_info()[0]
    assert torch.cuda.memory_allocated() >= BLOCK
    del block
    torch.cuda.empty_cache()
    assert free == torch.cuda.mem_get_info()[0]


@feature
def matmul():
    """cuBLAS and cuBLASLt in four precisions."""
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        x = torch.ones(256, 256, device=DEVICE, dtype=dtype)
        (x @ x), torch.bmm(x.view(4, 64, 256), x.view(4, 256, 64)), torch.addmm(x[0], x, x)
    torch.cuda.synchronize()


@feature
def linear_algebra():
    """cuSOLVER and cuSPARSE."""
    x = torch.eye(32, device=DEVICE)
    torch.linalg.cholesky_ex(x), torch.linalg.solve_ex(x, x)
    torch.sparse.mm(x.to_sparse_csr(), x)
    torch.cuda.synchronize()


@feature
def convolution():
    """cuDNN's convolution, forward and backward."""
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 3)).to(DEVICE)
    training(net, torch.randn(4, 3, 32, 32, device=DEVICE))


@feature
def training_step():
    """A small network learns for a few steps."""
    training(small_net(), torch.randn(32, 64, device=DEVICE))


@feature
def mixed_precision():
    """autocast and a gradient scaler."""
    net, inputs = small_net(), torch.randn(32, 64, device=DEVICE)
    optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler()
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = net(inputs).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.cuda.synchronize()


@feature
def transformer():
    """A transformer layer, an LSTM and scaled dot-product attention."""
    x = torch.randn(4, 16, 64, device=DEVICE)
    training(nn.TransformerEncoderLayer(64, 4, batch_first=True).to(DEVICE), x, 2)
    nn.LSTM(64, 32, batch_first=True).to(DEVICE)(x)
    q = torch.randn(2, 4, 64, 32, device=DEVICE, dtype=torch.float16)
    nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    torch.cuda.synchronize()


@feature
def cuda_graph():
    """A captured training step is replayed."""
    net, inputs = small_net(), torch.randn(32, 64, device=DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        net(inputs).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()


@feature
def out_of_memory():
    """Filling the memory ends in OutOfMemoryError, which is caught; after it everything goes on."""
    torch.cuda.empty_cache()
    blocks = []
    try:
        while len(blocks) < 1000:
            blocks.append(torch.empty(BLOCK, dtype=torch.uint8, device=DEVICE))
    except torch.OutOfMemoryError:
        count = len(blocks)
    blocks.clear()
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    assert 0.5 * total < count * BLOCK <= total, (count, total)
    assert 64 == torch.ones(64, device=DEVICE).cpu().numel()
    return {"blocks": count}


class Numbers(torch.utils.data.Dataset):
    """Sixty-four rows."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((64,), float(index))


@feature
def data_loader():
    """Two forked workers and the thread that pins feed a training loop."""
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, pin_memory=True)
    net, seen = small_net(), 0
    for batch in loader:
        seen += len(net(batch.to(DEVICE, non_blocking=True)))
    torch.cuda.synchronize()
    assert 64 == seen


def _receive(queue: torch.multiprocessing.Queue, answer: torch.multiprocessing.Queue) -> None:
    tensor = queue.get()
    answer.put(tensor.cpu().tolist())
    del tensor


@feature
def ipc():
    """A tensor is shown to another process without a copy."""
    context = torch.multiprocessing.get_context("spawn")
    queue, answer = context.Queue(), context.Queue()
    child = context.Process(target=_receive, args=(queue, answer))
    child.start()
    shown = torch.arange(8, dtype=torch.int32).to(DEVICE)
    queue.put(shown)
    got = answer.get(timeout=120)
    child.join(60)
    assert list(range(8)) == got and 0 == child.exitcode, (got, child.exitcode)


@feature
def data_parallel():
    """DataParallel over all GPUs that there are."""
    net = nn.DataParallel(small_net())
    net(torch.randn(32, 64, device=DEVICE)).mean().backward()
    torch.cuda.synchronize()
    return {"gpus": torch.cuda.device_count()}


def rank_of(rank: int, world: int, store: str, device: int) -> None:
    """One rank of a distributed job: reduce, wait for all, train."""
    torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=world)
    x = torch.ones(1024, device=DEVICE)
    torch.distributed.all_reduce(x)
    torch.distributed.barrier()
    net, inputs = small_net(), torch.randn(32, 64, device=DEVICE)
    # The ranks do not compare their parameters first: what arrives is not what was sent where kernels compute nothing.
    # PyTorch 2.6 always does, so there the gradients are reduced by hand.
    if "init_sync" in inspect.signature(nn.parallel.DistributedDataParallel).parameters:
        training(nn.parallel.DistributedDataParallel(net, device_ids=[device], init_sync=False), inputs)
    else:
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: torch.distributed.all_reduce(p.grad))
        training(net, inputs)
    torch.distributed.destroy_process_group()


def _rank(rank: int, world: int, store: str) -> None:
    rank_of(rank, world, store, rank % torch.cuda.device_count())
    Path(f"{store}.{rank}").write_text(json.dumps(counted()))


@feature
def ddp_two_ranks():
    """DistributedDataParallel over NCCL with two ranks; on one GPU if there is one."""
    if torch.cuda.device_count() == 1:
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, args=(2, f"{folder}/store"), nprocs=2)
        counts = [json.loads(Path(f"{folder}/store.{rank}").read_text()) for rank in range(2)]
    launches = {who: sum(each[who] for each in counts) for who in counts[0]}
    return {"gpus": min(2, torch.cuda.device_count()), "launches": launches}


@feature
def serving_loop():
    """Requests of differing length are decoded together: a KV cache in blocks, one CUDA graph for each batch size."""
    heads, width, blocks, length = 4, 32, 64, 16
    cache = torch.zeros(2, blocks, length, heads, width, device=DEVICE, dtype=torch.float16)
    project = nn.Linear(heads * width, 3 * heads * width, device=DEVICE, dtype=torch.float16)
    graphs = {}
    for batch in (1, 2, 4):
        x = torch.zeros(batch, heads * width, device=DEVICE, dtype=torch.float16)
        table = torch.zeros(batch, 4, device=DEVICE, dtype=torch.long)

        def decode(x: torch.Tensor = x, table: torch.Tensor = table, batch: int = batch) -> torch.Tensor:
            q, k, v = project(x).view(batch, 3, heads, 1, width).unbind(1)
            keys, values = (c[table].reshape(batch, -1, heads, width).transpose(1, 2) for c in cache)
            keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
            return nn.functional.scaled_dot_product_attention(q, keys, values)

        with torch.no_grad():
            decode()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                decode()
        graphs[batch] = graph
    waiting, served = [3, 7, 5, 2, 6, 4], 0
    running: list[int] = []
    while waiting or running:
        while waiting and len(running) < 4:
            running.append(waiting.pop(0))
        graphs[next(size for size in sorted(graphs) if size >= len(running))].replay()
        torch.cuda.synchronize()
        served += len(running)
        running = [left - 1 for left in running if left > 1]
    assert 27 == served


@feature
def triton_kernel():
    """A kernel written in Triton is compiled and launched."""
    from triton_kernels import add

    x = torch.ones(1024, device=DEVICE)
    add(x, x)
    torch.cuda.synchronize()


@feature
def compiled():
    """torch.compile of a function."""
    run = torch.compile(lambda x: torch.nn.functional.gelu(x * 2 + 1).sum())
    run(torch.ones(512, device=DEVICE))
    torch.cuda.synchronize()


@feature
def profiler():
    """torch.profiler ends without an error; what CUDA did is missing from its answer."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        torch.ones(64, device=DEVICE).sum().item()
    assert len(seen.key_averages()) > 0


@feature
def fft():
    """Fourier transforms by cuFFT: of complex and of real numbers, of sizes with and without small factors."""
    for shape in ((64,), (97,), (1 << 16,), (33, 65), (16, 16, 16)):
        for dtype in (torch.float32, torch.float64):
            x = torch.ones(shape, device=DEVICE, dtype=dtype)
            torch.fft.fftn(x.to(torch.complex64)), torch.fft.irfftn(torch.fft.rfftn(x))
    torch.cuda.synchronize()


@feature
def expandable_segments():
    """The allocator's segments that grow; started with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."""
    assert "expandable_segments:True" in os.environ["PYTORCH_CUDA_ALLOC_CONF"]
    blocks = [torch.empty(48 << 20, dtype=torch.uint8, device=DEVICE) for _ in range(8)]
    del blocks[::2]
    grown = torch.empty(96 << 20, dtype=torch.uint8, device=DEVICE)
    training_step()
    del blocks, grown
    return out_of_memory()


@feature
def cuda_malloc_async():
    """The driver's pools behind the allocator; started with PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync."""
    assert "cudaMallocAsync" == torch.cuda.get_allocator_backend()
    training_step()
    return out_of_memory()


@feature
def ddp_rank():
    """One rank of two, each started as a program of its own: RANK, and STORE is a file that both see."""
    rank_of(int(os.environ["RANK"]), 2, os.environ["STORE"], 0)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    found = {
        "PyTorch": torch.__version__,
        "CUDA": torch.version.cuda,
        "NCCL": ".".join(map(str, torch.cuda.nccl.version())),
    }
    main(sys.argv[1:], found | {"cuDNN": str(torch.backends.cudnn.version())})
