"""Unmodified PyTorch, CuPy and JAX: each feature runs alone and as a tenant, and every launch passes the gate."""

import pytest
from conftest import ALL_WAYS, SILENT_S, Client, Line, Seen, start
from gpuruns import Room
from watching import Watched

TORCH = {
    "expandable_segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "cuda_malloc_async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}
JAX = {
    "preallocated": {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"},
    "cuda_malloc_async": {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"},
}
TORCH_NOW = Client("PyTorch", "torch_client.py", "cuda13", "h100", TORCH, left_out=("ddp_rank",))
TWO_GPUS = (
    Client("PyTorch, a tenant and a rank on each of two GPUs", "torch_client.py", "cuda13", "h100x2"),
    Client("PyTorch for CUDA 12, a tenant and a rank on each of two GPUs", "torch_client.py", "cuda12", "v100x2"),
)
# NCCL 2.21; since 2.30 it can be allowed.
ONE_RANK_A_GPU = {"ddp_two_ranks": "Duplicate GPU detected"}
CLIENTS = (
    Client("CuPy", "cupy_client.py", "cuda13", "h100"),
    Client("CuPy for CUDA 12", "cupy_client.py", "cuda12", "v100"),
    Client("JAX", "jax_client.py", "jax", "h100", JAX),
    TORCH_NOW,
    Client("PyTorch for CUDA 12", "torch_client.py", "cuda12", "v100", TORCH, ("ddp_rank",), ONE_RANK_A_GPU),
)


def wrong(line: Line) -> str:
    """What is not as expected of a feature; a failure that is expected and does not come is wrong, too."""
    if not line["expected"]:
        return line["error"]
    return "" if line["expected"] in line["error"] else f"expected {line['expected']!r}, got {line['error']!r}"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", ALL_WAYS)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_every_feature_runs(seen: Seen, client: Client, way: str):
    """Each feature ends without an error, or in the one that is known; the program ends soon after the last of them."""
    lines = seen.of(client, way)

    assert {} == {name: wrong(line) for name, line in lines.items() if wrong(line)}
    assert len(lines) > 5


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", ALL_WAYS[1:])
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_every_launch_passes_the_gate(seen: Seen, client: Client, way: str):
    """The driver was given no more launches than passed the gate, feature by feature: fills and copies pass it too."""
    counts = {name: (line["emulator"], line["gate"]) for name, line in seen.of(client, way).items()}

    assert {} == {name: both for name, both in counts.items() if both[0] > both[1]}
    assert sum(gate for _, gate in counts.values()) > 10


@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", TWO_GPUS, ids=lambda client: client.environment)
def test_two_ranks_on_two_gpus(seen: Seen, client: Client):
    """Two tenants on a GPU each are the two ranks of one NCCL job."""
    room = Room(client.gpu)
    store = room.folder / "store"
    try:
        share = ("--gpu-request", ".6", "--gpu-mem", "4Gi")
        ranks = [
            start(room, client, "substitute", ["ddp_rank"], share=share, RANK=str(rank), STORE=str(store))
            for rank in range(2)
        ]
        lines = [list(Watched(run).facts(SILENT_S)) for run in ranks]
    finally:
        room.close()
    said = [each[-1] for each in lines]
    for line in lines[0]:
        seen.note(client, "substitute", line)

    assert ["", ""] == [each["error"] for each in said]
    assert all(each["gate"] >= each["emulator"] > 0 for each in said)
