"""Memory that processes share, by the messages alone: what is exported, joined and left, and words that are false."""

import os

import pytest

from aliquot.arbiter.abi import MessageType, Refusal, ShareFlag

MIB = 1 << 20


@pytest.fixture
def descriptors(tmp_path):
    """Two of one open device, and one of the same device opened again, as exported memory of a GPU is."""
    first, again = (os.open("/dev/zero", os.O_RDWR) for _ in range(2))
    found = [first, os.dup(first), again]
    yield found
    for descriptor in found:
        os.close(descriptor)


def export(process, mib: int, descriptor: int, number: int = 0) -> int:
    """The number of what is shared now, 0 when it is not."""
    answer = process.ask(MessageType.SHARE, flags=ShareFlag.EXPORT, a=mib * MIB, b=descriptor, c=number)
    assert answer[0] == MessageType.SHARED
    return answer[4]


def join(process, mib: int, descriptor: int) -> tuple[int, int]:
    """The number of the memory that is mapped, and whether it is known and does not fit."""
    answer = process.ask(MessageType.SHARE, a=mib * MIB, b=descriptor)
    assert answer[0] == MessageType.SHARED
    return answer[4], answer[5]


def leave(process, number: int) -> None:
    """Followed by a question, so that it has been heard."""
    process.send(MessageType.UNSHARE, a=number)
    process.reserve(0)


def leased(process) -> int:
    """MiB of the whole tenant."""
    return process.pages[0].u64("memory_leased_bytes") // MIB


def two(arbiter):
    """Two processes of a tenant with 1000 MiB; the first has leased 400."""
    arbiter.tenant("a", memory_mib=1000)
    processes = arbiter.process("a"), arbiter.process("a")
    assert processes[0].reserve(400 * MIB) == 400 * MIB
    return processes


def test_one_open_file_is_one_memory(arbiter, descriptors):
    """A descriptor of the same open file is known again, and one of the same device opened anew is not."""
    exporter, importer = two(arbiter)
    number = export(exporter, 300, descriptors[0])

    assert number > 0
    assert (0, 0) == join(importer, 300, descriptors[2])
    assert (number, 0) == join(importer, 300, descriptors[1])
    assert 400 == leased(importer)


def test_shared_memory_is_charged_until_its_last_holder_leaves(arbiter, descriptors):
    """It does not matter who leaves first, nor whether it ends or says so."""
    exporter, importer = two(arbiter)
    number = export(exporter, 300, descriptors[0])
    join(importer, 300, descriptors[1])

    leave(exporter, number)
    after_one = leased(importer)
    leave(importer, number)

    assert (400, 100) == (after_one, leased(importer))


def test_who_maps_more_than_was_paid_for_pays_the_rest(arbiter, descriptors):
    """A process that exported 10 MiB of words for 300 MiB of memory gains nothing, and over the limit is refused."""
    exporter, importer = two(arbiter)
    number = export(exporter, 10, descriptors[0])

    assert (number, 0) == join(importer, 300, descriptors[1])
    assert 690 == leased(importer)
    assert (0, 1) == join(importer, 700, descriptors[1])
    assert 690 == leased(importer)


def test_false_words_release_nothing(arbiter, descriptors):
    """A number that the process does not hold, or a descriptor that it does not have, changes no charge."""
    exporter, other = two(arbiter)
    number = export(exporter, 300, descriptors[0])
    leave(other, number)
    leave(exporter, number + 1)

    assert 0 == export(other, 1, 9999, number)
    assert (0, 0) == join(other, 300, 9999)
    assert 400 == leased(exporter)


@pytest.mark.parametrize(("mib", "descriptor"), [(401, 3), (0, 3), (1 << 31, 3), (1, 1 << 31)])
def test_memory_that_was_not_leased_cannot_be_shared(arbiter, mib, descriptor):
    """More than the process has, nothing, absurd sizes and absurd descriptors end the connection."""
    exporter, _ = two(arbiter)
    answer = exporter.ask(MessageType.SHARE, flags=ShareFlag.EXPORT, a=mib * MIB, b=descriptor)

    assert (MessageType.REFUSED, Refusal.MALFORMED) == (answer[0], answer[4])


def test_only_so_much_is_kept(arbiter, descriptors):
    """A tenant has a bounded number of descriptors in the ledger; what comes after them stays with its process."""
    exporter, _ = two(arbiter)
    number = export(exporter, 1, descriptors[0])
    found = [os.open("/dev/zero", os.O_RDONLY) for _ in range(1100)] if number else []
    taken = [export(exporter, 1, descriptor, number) for descriptor in found]
    for descriptor in found:
        os.close(descriptor)

    assert (1023, 0) == (sum(map(bool, taken)), taken[-1])
    assert 400 == leased(exporter)
