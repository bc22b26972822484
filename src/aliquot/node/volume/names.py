"""Which files are the driver's: libraries by the start of their names, and programs.

Those that compute, video and management need; graphics is left to NVIDIA's own container toolkit. libOpenCL.so.1 is no
file of the driver's: images bring their own loader for it.

Sources: libnvidia-container, src/nvc_info.c (utility, compute and video libraries; utility and compute binaries);
NVIDIA's CUDA compatibility package 13.4 (nvvm70, tileiras: compilers that newer drivers load when they are needed).
"""

from __future__ import annotations

from typing import Final

LIBRARIES: Final = (
    "libcuda.so",
    "libcudadebugger.so",
    "libnvcuvid.so",
    "libnvidia-allocator.so",
    "libnvidia-cfg.so",
    "libnvidia-compiler.so",
    "libnvidia-encode.so",
    "libnvidia-fatbinaryloader.so",
    "libnvidia-gpucomp.so",
    "libnvidia-ml.so",
    "libnvidia-nscq.so",
    "libnvidia-nvvm.so",
    "libnvidia-nvvm70.so",
    "libnvidia-opencl.so",
    "libnvidia-opticalflow.so",
    "libnvidia-pkcs11-openssl3.so",
    "libnvidia-pkcs11.so",
    "libnvidia-ptxjitcompiler.so",
    "libnvidia-tileiras.so",
    "libvdpau_nvidia.so",
)
BINARIES: Final = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-smi",
)
# What the hook stands for in the shared tree.
SUBSTITUTED: Final = ("libcuda.so", "libnvidia-ml.so")


def is_drivers(name: str) -> bool:
    """Whether a library of that name, such as `libcuda.so.1`, belongs to the driver."""
    return stem(name) in LIBRARIES


def stem(name: str) -> str:
    """The name without its version: `libcuda.so` of `libcuda.so.570.124.06`."""
    head, so, _ = name.partition(".so")
    return head + so
