"""What the inner loops of placement read and return: the columns of a cluster, and records of fixed layout.

The layouts are those of `native/kernels/kernels.h`; the plain oracles use the same records, so one caller serves both.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aliquot.placement.asks import Shape

if TYPE_CHECKING:
    from aliquot.placement.cluster import Cluster

MODELS: Final = 32
"""Bits of a set of models; model 31 and all later ones share the last bit."""
IDLE_MILLI: Final = 1000
ANY_MODEL: Final = 0xFFFF_FFFF

TARGET: Final = np.dtype(
    [("cpu_milli", "i8"), ("milli", "i4"), ("num", "i4"), ("models", "u4"), ("unused", "u4"), ("share", "f8")]
)
VISIT: Final = np.dtype(
    [("cpu_milli", "i4"), ("worth_milli", "i4"), ("need_milli", "i2"), ("whole", "i2"), ("models", "u4")]
)
SLOT: Final = np.dtype(
    [("gpus", "f8"), ("cpu_milli", "f8"), ("memory_mib", "f8"), ("price", "f8"), ("models", "u4"), ("unused", "u4")]
)

Records: TypeAlias = NDArray[np.void]


class ShapeRecord(ctypes.Structure):
    """`aliquot_shape`: a shape with its models as bits, and a small number that stands for it in memos."""

    _fields_ = (
        ("id", ctypes.c_int64),
        ("cpu_milli", ctypes.c_int64),
        ("memory_mib", ctypes.c_int64),
        ("gpu_mib", ctypes.c_int64),
        ("gpu_mem_ppm", ctypes.c_int64),
        ("whole", ctypes.c_int32),
        ("rest_milli", ctypes.c_int32),
        ("models", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    )
    id: int
    cpu_milli: int
    memory_mib: int
    gpu_mib: int
    gpu_mem_ppm: int
    whole: int
    rest_milli: int
    models: int


class ViewRecord(ctypes.Structure):
    """`aliquot_view`: where the columns of a cluster lie."""

    _fields_ = (
        ("nodes", ctypes.c_int64),
        ("gpus", ctypes.c_int64),
        ("free_milli", ctypes.c_void_p),
        ("free_mib", ctypes.c_void_p),
        ("size_mib", ctypes.c_void_p),
        ("model", ctypes.c_void_p),
        ("cpu_free", ctypes.c_void_p),
        ("memory_free", ctypes.c_void_p),
        ("version", ctypes.c_void_p),
    )


class Columns:
    """The columns of one cluster, read again whenever its layout changed."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._layout = -1
        self.refresh()

    def refresh(self) -> Columns:
        """Itself, with the arrays that the cluster has now."""
        cluster = self.cluster
        if cluster.layout == self._layout:
            return self
        self._layout = cluster.layout
        self.free_milli, self.free_mib, self.size_mib = cluster.free_milli, cluster.free_mib, cluster.size_mib
        self.model, self.cpu_free, self.memory_free = cluster.model, cluster.cpu_free, cluster.memory_free
        self.version = cluster.version
        self.nodes, self.gpus = self.free_milli.shape
        arrays = (self.free_milli, self.free_mib, self.size_mib, self.model, self.cpu_free, self.memory_free)
        self.record = ViewRecord(self.nodes, self.gpus, *(array.ctypes.data for array in (*arrays, self.version)))
        self.pointer = ctypes.addressof(self.record)
        return self


def model_bits(indices: Iterable[int]) -> int:
    """The set of models as bits."""
    bits = 0
    for index in indices:
        bits |= model_bit(index)
    return bits


def model_bit(index: int) -> int:
    """The bit of one model; none for -1."""
    return 0 if index < 0 else 1 << min(index, MODELS - 1)


def shape_record(cluster: Cluster, shape: Shape, number: int) -> ShapeRecord:
    """The record of a shape on this cluster; made again when the cluster gets a new model."""
    bits = ANY_MODEL
    if shape.models:
        bits = model_bits(np.flatnonzero(cluster.model_mask(shape.models)).tolist())
    return ShapeRecord(
        number,
        shape.cpu_milli,
        shape.memory_mib,
        shape.gpu_mib,
        shape.gpu_mem_ppm,
        min(shape.whole, 2**31 - 1),
        shape.rest_milli,
        bits,
    )
