"""What the inner loops of placement read and return: the columns of a cluster, and records of fixed layout.

The layouts are those of `native/kernels/kernels.h`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aliquot.placement.asks import Shape
from aliquot.placement.entries import GONE

if TYPE_CHECKING:
    from aliquot.placement.cluster import Cluster

MODELS: Final = 32
MAX_AMOUNT: Final = 1 << 62
"""What is asked for may be any number; where it counts in 64 bits it is at most this, which no node has."""
"""Bits of a set of models; model 31 and all later ones share the last bit."""
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
ARRAYS: Final = ("free_milli", "free_mib", "size_mib", "model", "cpu_free", "memory_free", "version")
"""The columns that the loops read, by their names in `Cluster`."""


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


class ViewRecord(ctypes.Structure):
    """`aliquot_view`: where the columns of a cluster lie."""

    _fields_ = (
        ("nodes", ctypes.c_int64),
        ("gpus", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ARRAYS),
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
        self._point()
        return self

    def only(self, node: int, gpus: Sequence[int]) -> Columns:
        """A copy in which the other devices of a node have no room for a part of a GPU."""
        left = copy(self)
        left.free_mib = self.free_mib.copy()
        left.free_mib[node, [g for g in range(self.gpus) if g not in gpus]] = GONE
        left._point()
        return left

    def _point(self) -> None:
        self.record = ViewRecord(self.nodes, self.gpus, *(getattr(self, name).ctypes.data for name in ARRAYS))


def model_bit(index: int) -> int:
    """The bit of one model; none for -1."""
    return 0 if index < 0 else 1 << min(index, MODELS - 1)


def shape_record(cluster: Cluster, shape: Shape, number: int) -> ShapeRecord:
    """The record of a shape on this cluster; made again when the cluster gets a new model."""
    bits = ANY_MODEL
    if shape.models:
        allowed = {model_bit(index) for index in np.flatnonzero(cluster.model_mask(shape.models)).tolist()}
        bits = sum(allowed)
    return ShapeRecord(
        number,
        min(shape.cpu_milli, MAX_AMOUNT),
        min(shape.memory_mib, MAX_AMOUNT),
        min(shape.gpu_mib, MAX_AMOUNT),
        shape.gpu_mem_ppm,
        min(shape.whole, 2**31 - 1),
        shape.rest_milli,
        bits,
    )
