"""The hook's table of charges against a plain dictionary, through any order of entering and taking out."""

import ctypes
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.compiling import compile_c

NATIVE = Path(__file__).resolve().parents[3] / "native"
POINTER, ARRAY, VMM, MODULE, OWNER = 1, 2, 3, 8, 17
OWNERS = range(1, 5)
ENDS_WITH_CONTEXT = {POINTER, ARRAY, MODULE}


class Entry(ctypes.Structure):
    """struct ledger_entry."""

    _fields_ = (
        ("key", ctypes.c_uint64),
        ("slot", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("other", ctypes.c_uint64),
        ("page", ctypes.c_uint64),
        ("kind", ctypes.c_uint32),
        ("refs", ctypes.c_uint32),
    )


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """ledger.c and what it stands on, as a library that checks its invariants at each change."""
    options = ["-shared", "-fPIC", "-DALIQUOT_CHECKS=2", f"-I{NATIVE}/include", f"-I{NATIVE}/hook"]
    sources = [
        NATIVE / "hook/memory/ledger.c",
        *(NATIVE / "hook/base" / f"{part}.c" for part in ("say", "conf", "conf_path")),
    ]
    library = ctypes.CDLL(str(compile_c(tmp_path_factory.mktemp("ledger") / "ledger.so", *options, *sources)))
    library.ledger_put.argtypes = [Entry, ctypes.POINTER(Entry)]
    library.ledger_put.restype = ctypes.c_bool
    for name in ("ledger_get", "ledger_take"):
        getattr(library, name).argtypes = [ctypes.c_uint32, ctypes.c_uint64, ctypes.POINTER(Entry)]
        getattr(library, name).restype = ctypes.c_bool
    library.ledger_take_owned.argtypes = [ctypes.c_uint64, ctypes.POINTER(Entry), ctypes.c_uint]
    library.ledger_count.restype = ctypes.c_uint64
    return library


def begin(ledger, owner):
    """A context whose memory stands under this number."""
    assert ledger.ledger_put(Entry(owner, None, 0, 0, 0, OWNER, 1), None)


def end(ledger, owner):
    """Ends such a context: takes out all that ends with it, a few entries at a time, and gives their bytes."""
    some, total = (Entry * 7)(), 0
    assert ledger.ledger_take(OWNER, owner, ctypes.byref(some[0]))
    while count := ledger.ledger_take_owned(owner, some, 7):
        total += sum(entry.bytes for entry in some[:count])
    return total


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), size=st.sampled_from([5, 100, 500, 1500]), step=st.sampled_from([1, 512, 1 << 21]))
def test_table_holds_what_a_dictionary_would(ledger, seed, size, step):
    """Entered, replaced, taken one by one or with their context: what is left and its bytes are a dictionary's."""
    ledger.ledger_clear()
    for owner in OWNERS:
        begin(ledger, owner)
    dice, plain = random.Random(seed), {}
    keys = [(dice.choice((POINTER, ARRAY, VMM, MODULE)), 1 + step * dice.randrange(4 * size)) for _ in range(size)]
    for _ in range(3 * size):
        kind, key = dice.choice(keys)
        what = dice.random()
        if what < 0.6:
            bytes_, context = dice.randrange(1 << 40), dice.choice(OWNERS)
            stale = Entry()
            assert ledger.ledger_put(Entry(key, None, bytes_, context, 0, kind, 1), ctypes.byref(stale))
            assert (stale.bytes, stale.other) == plain.get((kind, key), (0, 0))
            plain[kind, key] = (bytes_, context)
        elif what < 0.99:
            taken = Entry()
            assert ledger.ledger_take(kind, key, ctypes.byref(taken)) == ((kind, key) in plain)
            assert (kind, key) not in plain or plain.pop((kind, key)) == (taken.bytes, taken.other)
        else:
            gone = dice.choice(OWNERS)
            ended = {name for name, (_, context) in plain.items() if name[0] in ENDS_WITH_CONTEXT and context == gone}
            assert end(ledger, gone) == sum(plain.pop(name)[0] for name in ended)
            begin(ledger, gone)
    seen = Entry()

    assert ledger.ledger_count() == len(plain) + len(OWNERS)
    for (kind, key), (bytes_, context) in plain.items():
        assert ledger.ledger_get(kind, key, ctypes.byref(seen))
        assert (seen.bytes, seen.other) == (bytes_, context)


@pytest.mark.parametrize("kind", [POINTER, ARRAY, VMM, MODULE])
def test_what_is_entered_after_its_context_has_ended_comes_back(ledger, kind):
    """The driver has freed it with the context; memory that outlives contexts is entered."""
    ledger.ledger_clear()
    begin(ledger, 1)
    end(ledger, 1)
    back, seen = Entry(), Entry()

    assert ledger.ledger_put(Entry(4096, None, 512, 1, 0, kind, 1), ctypes.byref(back))
    assert (0 if kind == VMM else 512) == back.bytes
    assert (kind == VMM) == ledger.ledger_get(kind, 4096, ctypes.byref(seen))
