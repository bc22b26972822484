"""Kernels in Triton, which wants them in a file."""

import torch
import triton
import triton.language as tl


@triton.jit
def _add(a, b, out, count, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + at, tl.load(a + at, mask=at < count) + tl.load(b + at, mask=at < count), mask=at < count)


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(a)
    _add[(triton.cdiv(a.numel(), 256),)](a, b, out, a.numel(), block=256)
    return out
