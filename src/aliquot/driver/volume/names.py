"""Which files are the driver's: libraries by the start of their names, and programs.

Those that compute, video and management need; those of graphics, and others by name, where the administrator asks for
them. libOpenCL.so.1 is no file of the driver's: images bring their own loader for it, and so they do for libGL.so.1.

Sources: libnvidia-container, src/nvc_info.c (utility, compute, video and graphics libraries; utility and compute
binaries); NVIDIA Container Toolkit, discovery of graphics (files that name the libraries to EGL and Vulkan);
NVIDIA's CUDA compatibility package 13.4 (nvvm70, tileiras: compilers that newer drivers load when they are needed).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from aliquot.model.errors import UserError

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
GRAPHICS: Final = (
    "libEGL_nvidia.so",
    "libGLESv1_CM_nvidia.so",
    "libGLESv2_nvidia.so",
    "libGLX_nvidia.so",
    "libnvidia-api.so",
    "libnvidia-egl-gbm.so",
    "libnvidia-egl-wayland.so",
    "libnvidia-eglcore.so",
    "libnvidia-fbc.so",
    "libnvidia-glcore.so",
    "libnvidia-glsi.so",
    "libnvidia-glvkspirv.so",
    "libnvidia-ngx.so",
    "libnvidia-present.so",
    "libnvidia-rtcore.so",
    "libnvidia-tls.so",
    "libnvidia-vksc-core.so",
    "libnvidia-vulkan-producer.so",
    "libnvoptix.so",
)
GRAPHICS_FILES: Final = tuple(
    f"{top}/{name}"
    for name in (
        "glvnd/egl_vendor.d/10_nvidia.json",
        "vulkan/icd.d/nvidia_icd.json",
        "vulkan/icd.d/nvidia_layers.json",
        "vulkan/implicit_layer.d/nvidia_layers.json",
        "egl/egl_external_platform.d/10_nvidia_wayland.json",
        "egl/egl_external_platform.d/15_nvidia_gbm.json",
    )
    for top in ("usr/share", "etc")
)
GLX: Final = ("libGLX_nvidia.so", "libGLX_indirect.so.0")
"""A library and the name by which libGL loads it where it knows of no vendor."""
ASKED_BY_NAME: Final = "graphics"
"""The word for all libraries of graphics."""
# The libraries that the hook replaces in the shared tree.
SUBSTITUTED: Final = ("libcuda.so", "libnvidia-ml.so")


class BadLibrary(UserError):
    """A word that names no library."""


def wanted(words: str) -> frozenset[str]:
    """The libraries that are mirrored: the usual ones, and those of `graphics` or by name, as `libnvidia-fbc.so`.

    Raises:
        BadLibrary: a word is neither.
    """
    found = {*LIBRARIES}
    for word in filter(None, (word.strip() for word in words.split(","))):
        if word == ASKED_BY_NAME:
            found.update(GRAPHICS)
        elif re.fullmatch(r"lib[A-Za-z0-9_+.-]+\.so", word):
            found.add(word)
        else:
            raise BadLibrary(f"extra-libraries {word!r} is not a library; write graphics, or names as libnvidia-fbc.so")
    return frozenset(found)


def is_drivers(name: str, libraries: Collection[str] = LIBRARIES) -> bool:
    """Whether a library of that name, such as `libcuda.so.1`, is one of these."""
    return stem(name) in libraries


def stem(name: str) -> str:
    """The name without its version: `libcuda.so` of `libcuda.so.570.124.06`."""
    head, so, _ = name.partition(".so")
    return head + so
