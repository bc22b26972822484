"""Programs that close descriptors they do not know, as daemons do."""

import pytest

from aliquot.arbiter.abi import MessageType


@pytest.mark.parametrize("own", ["socket", "file"])
def test_a_program_may_close_the_link_and_use_its_number(tenant, own):
    """What the program has in the place of the closed link is not written to, read or closed; a new link is made."""
    scene = tenant(memory_mib=2048, auto_grant=True)
    program = scene.run(
        f"""
        import socket
        cuda = Cuda(); L = cuda.lib; p = ctypes.c_uint64()
        first = L.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(1 << 20))
        files = {{n: f"/proc/self/fd/{{n}}" for n in range(3, 64) if os.path.lexists(f"/proc/self/fd/{{n}}")}}
        link, = [number for number, file in files.items() if os.readlink(file).startswith("socket:")]
        mine, other = socket.socketpair(); mine.settimeout(1); other.setblocking(False)
        used = mine.fileno() if {own!r} == "socket" else os.memfd_create("mine")
        os.dup2(used, link)
        before = os.fstat(link).st_ino
        second = [L.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(200 << 20)) for _ in range(2)]
        launched = cuda.launch(cuda.spin(), 1000); synced = cuda.sync()
        try: came = len(other.recv(4096))
        except BlockingIOError: came = 0
        try: after = os.fstat(link)
        except OSError: after = None
        say(first=first, second=second, launched=[launched, synced], came=came,
            same=after is not None and after.st_ino == before, size=after.st_size if after else None)
        """
    )
    facts = program.read()

    assert {"first": 0, "second": [0, 0], "launched": [0, 0], "came": 0, "same": True, "size": 0} == facts
    assert 2 == scene.arbiter.count(MessageType.HELLO)
