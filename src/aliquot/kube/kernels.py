"""The node annotation `aliquot.dev/gpu-kernels`: the kernel lengths of a node's tenants, and its turn policy.

The node's agent writes it, the scheduler reads it before it promises a tenant how soon it wakes. Compact JSON, lengths
in microseconds by GPU and container: {"turns":"fluid","gpus":{"GPU-..":{"default/a/main":2048}}}. Lengths are
rounded up to steps of a quarter or less, so that it changes rarely.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from aliquot.kube.names import GPU_KERNELS


class KernelLengths(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node's values; lengths in microseconds."""

    turns: str = ""
    gpus: dict[str, dict[str, int]] = {}


def rounded_up(length_us: int) -> int:
    """The next number with three bits in front and zeros behind."""
    step = 1 << max(0, length_us.bit_length() - 3)
    return -(-length_us // step) * step


def write_kernels(kernels: KernelLengths) -> str:
    """The annotation's text."""
    gpus = {gpu: {name: rounded_up(us) for name, us in sorted(found.items())} for gpu, found in kernels.gpus.items()}
    return msgspec.json.encode(KernelLengths(kernels.turns, dict(sorted(gpus.items())))).decode()


def read_kernels(annotations: Mapping[str, str]) -> KernelLengths:
    """The values of a node with these annotations; empty if missing or unreadable."""
    try:
        return msgspec.json.decode(annotations.get(GPU_KERNELS, "{}"), type=KernelLengths)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return KernelLengths()
