"""The inner loops of placement: `libaliquot_kernels.so`, loaded by ctypes, and what its loops read and return.

Where the library is, `driver.policies` says, which makes the policies of programs. For the policy `fgd` and the
simulator's fragmentation metric: `kernels().fragmentation` and `.fgd_scores`. Tests compare it with loops in plain
Python (`tests/plain_kernels.py`), whose answers are equal to the last bit. The columns of a cluster and the records of
fixed layout are those of `native/kernels/kernels.h`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aliquot.lib.arrays import BoolArray, FloatArray, IntArray
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


ABI: Final = 1
MEMO_BYTES: Final = 64 << 20
"""Most memory that one future spends on scores per shape and node."""


class _Array:
    """How an array is handed over: ctypes calls `from_param`. numpy's own `ndpointer` takes 2 us more for each."""

    @staticmethod
    def from_param(array: np.ndarray[Any, Any]) -> ctypes.c_void_p:
        """The address; of an array whose elements lie in a row."""
        assert array.flags.c_contiguous
        return ctypes.c_void_p(array.ctypes.data)


_KINDS: Final = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int64,
    "j": ctypes.c_int32,
    "d": ctypes.c_double,
    "a": _Array,
    "s": ctypes.POINTER(ShapeRecord),
    "v": ctypes.POINTER(ViewRecord),
    "-": None,
}
_SIGNATURES: Final = {
    "kernels_abi": ("j", ""),
    "idle": ("i", "va"),
    "fragmentation": ("-", "vaiaia"),
    "fgd_scores": ("-", "vaisaaiaa"),
    "future_new": ("p", "iii"),
    "future_free": ("-", "p"),
    "future_work": ("i", "p"),
    "future_learn": ("j", "paiia"),
    "future_price": ("j", "paiad"),
    "future_capacity": ("-", "vaidaa"),
    "future_value": ("d", "pjiai"),
    "future_scores": ("i", "pvsaida"),
    "future_tend": ("j", "pvsadi"),
    "future_option": ("d", "pvsii"),
}
"""Result and arguments of the functions in kernels.h: v view, s shape, a array, p handle, i 64-bit integer, j 32-bit
integer, d double."""


class Future:
    """The value of nodes for arrivals to come, and scores by it (docs/policy-aliquot.md): `aliquot_future`."""

    def __init__(self, library: ctypes.CDLL, nodes: int, gpus: int) -> None:
        self._library = library
        self._handle: int | None = library.aliquot_future_new(nodes, gpus, MEMO_BYTES)
        if not self._handle:
            raise MemoryError("no memory for the values of placement")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.aliquot_future_free(self._handle)
            self._handle = None

    @property
    def work(self) -> int:
        """Values recomputed so far."""
        return int(self._library.aliquot_future_work(self._handle))

    def learn(self, visits: Records, weight: FloatArray) -> None:
        """New sequences: `VISIT` [sequences, visits], weight [visits]; forgets all values."""
        _require(self._library.aliquot_future_learn(self._handle, visits, *visits.shape, weight))

    def price(self, slots: Records, model_price: FloatArray, chi: float) -> None:
        """Set the prices of slots (`SLOT` [slots]) and models (per milli-GPU, [MODELS]); chi weighs partial slots."""
        _require(self._library.aliquot_future_price(self._handle, slots, len(slots), model_price, chi))

    def scores(self, columns: Columns, shape: ShapeRecord, nodes: IntArray, quantum: float) -> IntArray:
        """Scores of nodes that fit."""
        out, view = np.empty(len(nodes), dtype=np.int64), columns.record
        _require(self._library.aliquot_future_scores(self._handle, view, shape, nodes, len(nodes), quantum, out))
        return out

    def tend(self, columns: Columns, shape: ShapeRecord, open_nodes: BoolArray, quantum: float, budget: int) -> bool:
        """Have the scores of a shape ready on all open nodes that fit it; False when the budget of values ended it."""
        view = columns.record
        done = self._library.aliquot_future_tend(self._handle, view, shape, open_nodes, quantum, budget)
        _require(done)
        return bool(done)

    def option(self, columns: Columns, shape: ShapeRecord, node: int, gpu: int) -> float:
        """What the shape's shared part changes on one device; minus infinity where it does not fit."""
        return float(self._library.aliquot_future_option(self._handle, columns.record, shape, node, gpu))


class Kernels:
    """The loops over a cluster; see `native/kernels/kernels.h` for the contract of each.

    Raises:
        OSError: the library cannot be loaded, or is of another version.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._library, f"aliquot_{name}")
            function.restype = _KINDS[result]
            function.argtypes = [_KINDS[letter] for letter in arguments]
        if self._library.aliquot_kernels_abi() != ABI:
            raise OSError(f"{path} is of another version than this program; run make setup")

    def idle(self, columns: Columns) -> tuple[int, IntArray]:
        """Idle milli-GPU in all, and by model bit [MODELS]."""
        by_model = np.empty(MODELS, dtype=np.int64)
        return int(self._library.aliquot_idle(columns.record, by_model)), by_model

    def fragmentation(self, columns: Columns, targets: Records, nodes: IntArray) -> FloatArray:
        """Milli-GPU of each node that the next pod of the target workload (`TARGET` [m]) cannot use."""
        amount = np.empty(len(nodes), dtype=np.float64)
        self._library.aliquot_fragmentation(columns.record, targets, len(targets), nodes, len(nodes), amount)
        return amount

    def fgd_scores(
        self, columns: Columns, targets: Records, shape: ShapeRecord, before: FloatArray, nodes: IntArray
    ) -> tuple[IntArray, NDArray[np.int16]]:
        """FGD's integer scores of fitting nodes and the device of each; `before` is the fragmentation of all N."""
        scores, gpus = np.empty(len(nodes), dtype=np.int64), np.empty(len(nodes), dtype=np.int16)
        view, count = columns.record, len(nodes)
        self._library.aliquot_fgd_scores(view, targets, len(targets), shape, before, nodes, count, scores, gpus)
        return scores, gpus

    def capacity(self, columns: Columns, slots: Records, chi: float, held: BoolArray) -> FloatArray:
        """The slots of each shape in the cluster, without the nodes in `held`: float64 [slots]."""
        found = np.empty(len(slots), dtype=np.float64)
        self._library.aliquot_future_capacity(columns.record, slots, len(slots), chi, held, found)
        return found

    def future(self, nodes: int, gpus: int) -> Future:
        """A value function for clusters of this size."""
        return Future(self._library, nodes, gpus)


def _require(done: int) -> None:
    if done < 0:
        raise MemoryError("no memory for the scores of placement")


_current: Kernels | None = None


def use(path: str) -> None:
    """Take the library at this path for all that is made from now on.

    Raises:
        OSError: it cannot be loaded, or is of another version.
    """
    global _current
    _current = Kernels(path)


def kernels() -> Kernels:
    """The inner loops in use."""
    assert _current is not None, "policies of programs are made by driver.policies.maker"
    return _current
