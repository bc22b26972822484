"""Unmodified PyTorch, CuPy and JAX: each feature runs alone and as a tenant, and every launch passes the gate."""

from __future__ import annotations

import json

import pytest
from conftest import ALL_WAYS, Client, Seen, start
from gpuruns import Room

TORCH = {
    "expandable_segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "cuda_malloc_async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}
TORCH_NOW = Client("PyTorch", "torch_client.py", "cuda13", "h100", TORCH, left_out=("ddp_rank",))
CLIENTS = (
    Client("CuPy", "cupy_client.py", "cuda13", "h100"),
    Client("CuPy for CUDA 12", "cupy_client.py", "cuda12", "v100"),
    Client("JAX", "jax_client.py", "jax", "h100"),
    TORCH_NOW,
    Client("PyTorch for CUDA 12", "torch_client.py", "cuda12", "v100", TORCH, left_out=("ddp_rank",)),
)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", ALL_WAYS)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_every_feature_runs(seen: Seen, client: Client, way: str):
    """Each feature ends without an error."""
    errors = {name: line["error"] for name, line in seen.of(client, way).items()}

    assert {} == {name: error for name, error in errors.items() if error}
    assert len(errors) > 5


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", ALL_WAYS[1:])
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_every_launch_passes_the_gate(seen: Seen, client: Client, way: str):
    """The driver was given as many launches as the gate let through, feature by feature."""
    counts = {name: (line["emulator"], line["gate"]) for name, line in seen.of(client, way).items()}

    assert {} == {name: both for name, both in counts.items() if both[0] != both[1]}
    assert sum(gate for _, gate in counts.values()) > 10


@pytest.mark.timeout(600)
def test_two_ranks_on_two_gpus(seen: Seen):
    """Two tenants on a GPU each are the two ranks of one NCCL job."""
    room, client = Room("h100x2"), TORCH_NOW
    store = room.folder / "store"
    try:
        share = ("--gpu-request", ".6", "--gpu-mem", "4Gi")
        ranks = [
            start(room, client, "substitute", ["ddp_rank"], share=share, RANK=str(rank), STORE=str(store))
            for rank in range(2)
        ]
        said = [json.loads(run.process.communicate(timeout=300)[0].splitlines()[-1]) for run in ranks]
    finally:
        room.close()
    seen.note(client.name, "substitute", "ddp_two_gpus", **{k: v for k, v in said[0].items() if k != "feature"})

    assert ["", ""] == [each["error"] for each in said]
    assert all(each["emulator"] == each["gate"] > 0 for each in said)
