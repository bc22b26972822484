"""Training in PyTorch: DataLoader, mixed precision, a checkpoint to continue from.

    aliquot run --gpu-request .3 --gpu-mem 4Gi -- python torch_train.py --epochs 3 --checkpoint model.pt

Nothing in it knows of Aliquot. It prints what it sees of the GPU, one line for each epoch, and one line of JSON at the
end. On an emulated GPU kernels compute nothing: losses are meaningless numbers, often NaN, and so are the weights that
the checkpoint has.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def dataset(samples: int) -> TensorDataset:
    """Images of two classes: noise, and noise with a bright square."""
    generator = torch.Generator().manual_seed(7)
    images, labels = torch.randn(samples, 1, 16, 16, generator=generator), torch.arange(samples) % 2
    images[labels == 1, :, 4:12, 4:12] += 1.0
    return TensorDataset(images, labels)


def network() -> nn.Module:
    """A small classifier."""
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 2))


def train(net: nn.Module, epochs: int, loader: DataLoader, checkpoint: Path) -> dict[str, float]:
    """Train from the checkpoint's epoch, if there is one, to `epochs`; write the checkpoint after each epoch."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler, criterion = torch.amp.GradScaler("cuda"), nn.CrossEntropyLoss()
    first = resume(checkpoint, net, optimizer, scaler)
    steps, began_s = 0, time.monotonic()
    for epoch in range(first, epochs):
        losses = []
        for images, labels in loader:
            images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(net(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
            steps += 1
        print(f"epoch {epoch + 1} of {epochs}: loss {torch.stack(losses).mean().item():.4f}", flush=True)
        state = {"epoch": epoch + 1, "net": net.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"scaler": scaler.state_dict()}, checkpoint)
    return {"first_epoch": first, "steps": steps, "seconds": round(time.monotonic() - began_s, 3)}


def resume(checkpoint: Path, net: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> int:
    """Load the checkpoint where it exists; the number of epochs that it has seen."""
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, map_location="cuda", weights_only=True)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    print(f"continuing after epoch {state['epoch']}", flush=True)
    return int(state["epoch"])


def main() -> None:
    """Train, and report."""
    parser = argparse.ArgumentParser(description="Trains a small classifier on a GPU.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2, help="processes that load data")
    parser.add_argument("--checkpoint", type=Path, default=Path("model.pt"))
    given = parser.parse_args()
    total_mib = torch.cuda.mem_get_info()[1] >> 20
    print(f"{torch.cuda.get_device_name()}, {total_mib} MiB", flush=True)
    loader = DataLoader(
        dataset(given.samples), given.batch_size, shuffle=True, num_workers=given.workers, pin_memory=True
    )
    facts = train(network().cuda(), given.epochs, loader, given.checkpoint)
    print(json.dumps(facts | {"total_mib": total_mib, "peak_mib": torch.cuda.max_memory_allocated() >> 20}))


if __name__ == "__main__":
    main()
