"""Address ranges and mappings that are not the program's, or not of that size, are refused and stay as they are."""

import struct

import pytest
from kit.driver_calls import INVALID_VALUE, PAGE, Argument
from kit.driver_process import DriverProcess

READ_WRITE = struct.pack("3I", 1, 0, 3)


class Range:
    """A process with a reserved range of eight pages, two pages of physical memory, and linear memory."""

    def __init__(self, gpu: DriverProcess) -> None:
        self.gpu = gpu
        self.at = gpu.new("cuMemAddressReserve", 8 * PAGE, 0, 0, 0)
        self.memory = self.pages(2)
        self.linear = gpu.new("cuMemAlloc_v2", PAGE)

    def pages(self, count: int) -> int:
        """Physical memory."""
        return int(self.gpu.create(count * PAGE).value)

    def map(self, at: int, pages: int, handle: int = 0) -> int:
        return self.gpu.code("cuMemMap", at, pages * PAGE, 0, handle or self.memory, 0)

    def unmap(self, at: int, size: int) -> int:
        return self.gpu.code("cuMemUnmap", at, size)

    def free(self, at: int, size: int) -> int:
        return self.gpu.code("cuMemAddressFree", at, size)

    def allow(self, at: int, size: int, access: Argument = READ_WRITE) -> int:
        return self.gpu.code("cuMemSetAccess", at, size, access, 1)


@pytest.fixture
def own(clients):
    return Range(clients().gpu())


def test_only_what_was_reserved_is_freed_and_as_a_whole(own):
    """A wrong address or size, memory of another kind, or a range with a mapping is CUDA_ERROR_INVALID_VALUE."""
    own.map(own.at, 2)
    host = own.gpu.host_bytes(3 * 4096)
    page = -(-host // 4096) * 4096
    own.gpu.write(page, b"kept")
    wrong = [(own.at, 4 * PAGE), (own.at + PAGE, PAGE), (own.at, 0), (0, PAGE), (own.at, 9 * PAGE), (own.at, -1)]
    wrong += [(own.linear, PAGE), (page, 4096), (own.at, 8 * PAGE)]

    assert {INVALID_VALUE} == {own.free(at, size) for at, size in wrong}
    assert b"kept" == own.gpu.read(page, 4)
    own.unmap(own.at, 2 * PAGE)
    assert [0, INVALID_VALUE] == [own.free(own.at, 8 * PAGE) for _ in range(2)]


def test_memory_is_mapped_into_what_is_reserved_and_free(own):
    """Outside a reservation, over its end, onto a mapping or onto other memory it is CUDA_ERROR_INVALID_VALUE."""
    wrong = [(own.linear, 2), (0, 2), (own.at + 7 * PAGE, 2), (own.at - PAGE, 2), (-PAGE, 2), (own.at + 512, 2)]
    wrong.append((own.at, 1))

    assert {INVALID_VALUE} == {own.map(at, pages) for at, pages in wrong}
    assert 0 == own.map(own.at + 2 * PAGE, 2)
    assert INVALID_VALUE == own.map(own.at + 2 * PAGE, 2, own.pages(2))
    assert [INVALID_VALUE] * 2 == [own.map(own.at + pages * PAGE, 2) for pages in (1, 3)]
    assert [0, 0] == [own.map(own.at + 4 * PAGE, 2), own.map(own.at, 2, own.pages(2))]
    assert 0 == own.unmap(own.at, 6 * PAGE)


def test_whole_mappings_are_unmapped_and_made_accessible(own):
    """A part of a mapping, a gap, or what is not mapped is CUDA_ERROR_INVALID_VALUE and leaves the others mapped."""
    at, second = own.at, own.at + 4 * PAGE
    own.map(at, 2)
    own.map(second, 2, own.pages(2))
    not_unmapped = [(at, PAGE), (at + PAGE, PAGE), (at + PAGE, 2 * PAGE), (at, 6 * PAGE), (at, 0), (at, -1)]
    not_unmapped += [(at + 2 * PAGE, 2 * PAGE), (own.linear, PAGE), (0, PAGE)]
    not_allowed = [(at, 4 * PAGE), (at, 0), (own.linear, PAGE), (at + 2 * PAGE, PAGE), (at, -1)]

    assert {INVALID_VALUE} == {own.unmap(*each) for each in not_unmapped}
    assert {INVALID_VALUE} == {own.allow(*each) for each in not_allowed} | {own.allow(at, 2 * PAGE, None)}
    assert [0, 0] == [own.allow(at, 2 * PAGE), own.allow(second, 2 * PAGE)]
    assert [0, 0, 0] == [own.unmap(at, 2 * PAGE), own.unmap(second, 2 * PAGE), own.free(at, 8 * PAGE)]
