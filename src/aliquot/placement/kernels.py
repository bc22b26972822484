"""The native inner loops of placement, loaded by ctypes, and the choice between them and their plain oracles.

Who starts a program says where the library is: `use(str(native_part(KERNELS)))`. Without that, or where the library
does not load, `kernels()` gives those in plain Python, which have the same answers to the last bit and take longer.
For the policy `fgd` and the simulator's fragmentation metric: `kernels().fragmentation` and `.fgd_scores`.
"""

from __future__ import annotations

import ctypes
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aliquot.lib.arrays import BoolArray, FloatArray, IntArray
from aliquot.placement.columns import MODELS, Columns, Records, ShapeRecord
from aliquot.placement.plain import Future, Kernels

ABI: Final = 1
MAX_GPUS: Final = 64
"""Most devices of one node in the library's own tables."""
MEMO_BYTES: Final = 64 << 20
"""Most memory that one future spends on scores per shape and node."""
_KINDS: Final = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "j": ctypes.c_int32, "d": ctypes.c_double, "-": None}
_SIGNATURES: Final = {
    "kernels_abi": ("j", ""),
    "idle": ("i", "pp"),
    "fragmentation": ("-", "ppipip"),
    "fgd_scores": ("-", "ppipppipp"),
    "future_new": ("p", "iii"),
    "future_free": ("-", "p"),
    "future_work": ("i", "p"),
    "future_learn": ("j", "ppiip"),
    "future_price": ("j", "ppipd"),
    "future_capacity": ("-", "ppidpp"),
    "future_value": ("d", "pjipi"),
    "future_scores": ("i", "ppppidp"),
    "future_tend": ("j", "ppppdi"),
    "future_option": ("d", "pppii"),
}
"""Result and arguments of the functions in kernels.h: p pointer, i 64-bit integer, j 32-bit integer, d double."""


class NativeFuture(Future):
    """`aliquot_future` of the library."""

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
        """As in `Future`."""
        sequences, count = visits.shape
        visits = np.ascontiguousarray(visits)
        done = self._library.aliquot_future_learn(
            self._handle, visits.ctypes.data, sequences, count, weight.ctypes.data
        )
        _require(done)

    def price(self, slots: Records, model_price: FloatArray, chi: float) -> None:
        """As in `Future`."""
        done = self._library.aliquot_future_price(
            self._handle, slots.ctypes.data, len(slots), model_price.ctypes.data, chi
        )
        _require(done)

    def value(self, model: int, cpu_milli: int, left: IntArray) -> float:
        """As in `Future`."""
        devices = np.ascontiguousarray(left, dtype=np.int32)
        return float(
            self._library.aliquot_future_value(self._handle, model, cpu_milli, devices.ctypes.data, len(devices))
        )

    def scores(self, columns: Columns, shape: ShapeRecord, nodes: IntArray, quantum: float) -> IntArray:
        """As in `Future`."""
        out = np.empty(len(nodes), dtype=np.int64)
        done = self._library.aliquot_future_scores(
            self._handle,
            columns.pointer,
            ctypes.byref(shape),
            nodes.ctypes.data,
            len(nodes),
            quantum,
            out.ctypes.data,
        )
        _require(done)
        return out

    def tend(self, columns: Columns, shape: ShapeRecord, open_nodes: BoolArray, quantum: float, budget: int) -> bool:
        """As in `Future`."""
        done = self._library.aliquot_future_tend(
            self._handle, columns.pointer, ctypes.byref(shape), open_nodes.ctypes.data, quantum, budget
        )
        _require(done)
        return bool(done)

    def option(self, columns: Columns, shape: ShapeRecord, node: int, gpu: int) -> float:
        """As in `Future`."""
        return float(self._library.aliquot_future_option(self._handle, columns.pointer, ctypes.byref(shape), node, gpu))


class NativeKernels(Kernels):
    """The library `libaliquot_kernels.so`.

    Raises:
        OSError: it cannot be loaded, or is of another version.
    """

    native = True

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._library, f"aliquot_{name}")
            function.restype = _KINDS[result]
            function.argtypes = [_KINDS[letter] for letter in arguments]
        if self._library.aliquot_kernels_abi() != ABI:
            raise OSError(f"{path} is of another version than this program; run make setup")

    def idle(self, columns: Columns) -> tuple[int, IntArray]:
        """As in `Kernels`."""
        by_model = np.empty(MODELS, dtype=np.int64)
        return int(self._library.aliquot_idle(columns.pointer, by_model.ctypes.data)), by_model

    def fragmentation(self, columns: Columns, targets: Records, nodes: IntArray) -> FloatArray:
        """As in `Kernels`."""
        if columns.gpus > MAX_GPUS:
            return super().fragmentation(columns, targets, nodes)
        amount = np.empty(len(nodes), dtype=np.float64)
        self._library.aliquot_fragmentation(
            columns.pointer, targets.ctypes.data, len(targets), nodes.ctypes.data, len(nodes), amount.ctypes.data
        )
        return amount

    def fgd_scores(
        self, columns: Columns, targets: Records, shape: ShapeRecord, before: FloatArray, nodes: IntArray
    ) -> tuple[IntArray, NDArray[np.int16]]:
        """As in `Kernels`."""
        if columns.gpus > MAX_GPUS:
            return super().fgd_scores(columns, targets, shape, before, nodes)
        scores, gpus = np.empty(len(nodes), dtype=np.int64), np.empty(len(nodes), dtype=np.int16)
        self._library.aliquot_fgd_scores(
            columns.pointer,
            targets.ctypes.data,
            len(targets),
            ctypes.byref(shape),
            before.ctypes.data,
            nodes.ctypes.data,
            len(nodes),
            scores.ctypes.data,
            gpus.ctypes.data,
        )
        return scores, gpus

    def capacity(self, columns: Columns, slots: Records, chi: float, held: BoolArray | None = None) -> FloatArray:
        """As in `Kernels`."""
        if columns.gpus > MAX_GPUS:
            return super().capacity(columns, slots, chi, held)
        found = np.empty(len(slots), dtype=np.float64)
        self._library.aliquot_future_capacity(
            columns.pointer,
            slots.ctypes.data,
            len(slots),
            chi,
            None if held is None else held.ctypes.data,
            found.ctypes.data,
        )
        return found

    def future(self, nodes: int, gpus: int) -> Future:
        """As in `Kernels`; machines with more GPUs than the library knows get the oracle."""
        if gpus > MAX_GPUS:
            return super().future(nodes, gpus)
        return NativeFuture(self._library, nodes, gpus)


def _require(done: int) -> None:
    if done < 0:
        raise MemoryError("no memory for the scores of placement")


_current: Kernels = Kernels()


def use(path: str | None) -> Kernels:
    """Take the library at this path for all that is made from now on, None for the plain oracles.

    Raises:
        OSError: it cannot be loaded, or is of another version.
    """
    global _current
    _current = NativeKernels(path) if path else Kernels()
    return _current


def kernels() -> Kernels:
    """The inner loops in use."""
    return _current
