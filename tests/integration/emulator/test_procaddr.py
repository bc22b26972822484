"""cuGetProcAddress answers every row of the symbol table with exactly its symbol."""

from pathlib import Path

TABLE = Path(__file__).parents[3] / "native" / "symbols" / "cuda.tsv"
ROUTES = """
cuda = ctypes.CDLL("libcuda.so.1")
def ask(name, version, flags):
    out, status = ctypes.c_void_p(), ctypes.c_int(-1)
    where = ctypes.byref(out), version, ctypes.c_uint64(flags), ctypes.byref(status)
    r = cuda.cuGetProcAddress_v2(name.encode(), *where)
    return [r, status.value, out.value]
rows = [line.split("\\t") for line in open(os.environ["TABLE"])][1:]
wrong, seen = [], {}
for name, version, stream, symbol in rows:
    symbol = symbol.strip()
    r, status, at = ask(name, int(version), 0 if stream == "plain" else 2)
    want = ctypes.cast(getattr(cuda, symbol), ctypes.c_void_p).value
    if r or status or at != want or seen.setdefault(at, symbol) != symbol:
        wrong.append(symbol)
answer([len(rows), wrong])
"""


def test_every_row_routes_to_its_symbol(clients):
    """Name, version and stream flavour of every row lead to a function of its own: the exported symbol of that row."""
    count, wrong = clients("t4").run(ROUTES, TABLE=str(TABLE))

    assert count > 700
    assert wrong == []


def test_versions_between_rows_get_the_newest_before(clients):
    """A version between two rows gets the older function; one below the first row gets none, and why."""
    between, early, unknown, empty = clients("t4").run(
        ROUTES.split("rows =", maxsplit=1)[0]
        + """
old = ctypes.cast(cuda.cuCtxCreate_v2, ctypes.c_void_p).value
answer([ask("cuCtxCreate", 11030, 0)[2] == old, ask("cuMemAllocAsync", 11010, 0)[1], ask("cuNoSuchThing", 13000, 0)[1],
        ask("", 0, 0)[0]])
"""
    )

    assert between
    assert (early, unknown, empty) == (2, 1, 0)
