"""Memory shown to another process: `share.py export|import SOCKET MIB`; does one step for each line on stdin.

Lines: `send` (exports once more and sends the descriptor), `receive`, `map`, `drop` (unmaps and releases), `create MIB`
(more memory, kept). Each is answered by one line with the code of the last call.
"""

import ctypes
import os
import socket
import sys

MIB = 1 << 20


class Prop(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", ctypes.c_int * 2),
        ("rest", ctypes.c_uint64 * 2),
    ]


class Program:
    """A process with a context and one piece of memory."""

    def __init__(self, role: str, path: str, mib: int) -> None:
        self.cuda, self.context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        assert self.cuda.cuInit(0) == 0
        assert self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0) == 0
        assert self.cuda.cuCtxSetCurrent(self.context) == 0
        self.bytes, self.handle, self.address = mib * MIB, ctypes.c_uint64(), ctypes.c_uint64()
        self.path, self.listener, self.mapped = path, None, False
        if role == "export":
            assert self.make(mib, self.handle) == 0
        else:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(path)
            self.listener.listen()

    def make(self, mib: int, handle: ctypes.c_uint64) -> int:
        prop = ctypes.byref(Prop(1, 1, (1, 0)))
        return self.cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(mib * MIB), prop, ctypes.c_uint64(0))

    def create(self, mib: str) -> int:
        return self.make(int(mib), ctypes.c_uint64())

    def send(self) -> int:
        descriptor = ctypes.c_int()
        code = self.cuda.cuMemExportToShareableHandle(ctypes.byref(descriptor), self.handle, 1, ctypes.c_uint64(0))
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(self.path)
            socket.send_fds(other, [b"x"], [descriptor.value])
        os.close(descriptor.value)
        return code

    def receive(self) -> int:
        other, _ = self.listener.accept()
        _, (descriptor,), _, _ = socket.recv_fds(other, 1, 1)
        code = self.cuda.cuMemImportFromShareableHandle(ctypes.byref(self.handle), ctypes.c_void_p(descriptor), 1)
        os.close(descriptor)
        return code

    def map(self) -> int:
        size = ctypes.c_size_t(self.bytes)
        zero, no = ctypes.c_size_t(0), ctypes.c_uint64(0)
        self.cuda.cuMemAddressReserve(ctypes.byref(self.address), size, zero, no, no)
        code = self.cuda.cuMemMap(self.address, size, zero, self.handle, no)
        self.mapped = code == 0
        return code

    def drop(self) -> int:
        if self.mapped:
            assert self.cuda.cuMemUnmap(self.address, ctypes.c_size_t(self.bytes)) == 0
        return self.cuda.cuMemRelease(self.handle)


def main() -> None:
    program = Program(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    print("ready", flush=True)
    for line in sys.stdin:
        step, *arguments = line.split()
        print(getattr(program, step)(*arguments), flush=True)


main()
