"""cuGetProcAddress and dlsym: what is handed out is the hook of the very symbol that the driver chose."""

import csv
import subprocess
from pathlib import Path

from kit.compiling import compile_c

ROOT = Path(__file__).resolve().parents[3]
TABLE = ROOT / "native" / "symbols" / "cuda.tsv"

ASK_BOTH = """
import csv
libc = ctypes.CDLL(None)
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("at", ctypes.c_void_p)]
def where(address):
    info = Info()
    libc.dladdr(ctypes.c_void_p(address), ctypes.byref(info))
    return [(info.file or b"").decode().rsplit("/", 2)[-2:], (info.name or b"").decode() if info.at == address else ""]
def ask(lib, name, version, flags, symbol="cuGetProcAddress_v2"):
    out, status = ctypes.c_void_p(), ctypes.c_int(-1)
    call, wish = getattr(lib, symbol), ctypes.c_uint64(flags)
    result = call(name.encode(), ctypes.byref(out), version, wish, ctypes.byref(status))
    return [result, status.value, out.value or 0]
hook = ctypes.CDLL("libcuda.so.1"); hook.cuInit(0)
real = ctypes.CDLL(REAL)
"""


def rows() -> list[dict[str, str]]:
    """The published truth table."""
    return list(csv.DictReader(TABLE.open(), delimiter="\t"))


def hooked() -> set[str]:
    """The exact symbols that the generator intercepts."""
    text = (ROOT / "native" / "hook" / "gen" / "hooks.c").read_text()
    return {line.split("hook_", 1)[1].split("(")[0] for line in text.splitlines() if line.startswith("HOOK CUresult")}


def handed_out() -> set[str]:
    """These, and those that we hand out because they wait while their tenant is parked."""
    text = (ROOT / "native" / "hook" / "gen" / "trampolines.S").read_text()
    return {line.split()[1].rstrip(",") for line in text.splitlines() if line.startswith(("FORWARD cu", "HOOKED cu"))}


def test_every_name_version_and_flag_gets_its_own_hook(tenant):
    """For each row of the table the answer is the driver's own function, or ours of exactly that symbol."""
    scene = tenant()
    names = sorted({(row["name"], int(row["version"])) for row in rows()})
    program = scene.run(
        f"REAL = {str(scene.machine.libcuda)!r}; NAMES = {names!r}\n"
        + ASK_BOTH
        + """
answers = []
for name, version in NAMES:
    for at in (version - 1, version, 13040):
        for flags in (0, 1, 2):
            answers.append([name, at, flags, ask(real, name, at, flags), ask(hook, name, at, flags)])
addresses = sorted({a[i][2] for a in answers for i in (3, 4)})
say(answers=answers, where={a: where(a) for a in addresses if a}, stats=None)
say(symbols={s: ctypes.cast(getattr(real, s), ctypes.c_void_p).value for s in SYMBOLS if hasattr(real, s)})
""".replace("SYMBOLS", repr(sorted(handed_out())))
    )
    facts, symbols = program.read(), program.read()["symbols"]

    by_address = {address: symbol for symbol, address in symbols.items() if symbol.startswith("cu")}
    wrong = []
    replaced: dict[int, set[str]] = {}
    for name, version, flags, (real_result, real_status, real), (result, status, ours) in facts["answers"]:
        same = (result, status) == (real_result, real_status)
        is_hooked = real in by_address
        if not same or (real and is_hooked == (ours == real)):
            wrong.append((name, version, flags, by_address.get(real), result, real_result))
        if is_hooked:
            replaced.setdefault(ours, set()).add(by_address[real])
    assert wrong == []
    assert all(len(symbols) == 1 for symbols in replaced.values())
    assert len(replaced) > 60


def test_every_version_and_twin_of_an_intercepted_name_is_intercepted():
    """No version of an intercepted name and no per-thread-stream twin of it is left to pass."""
    known = hooked()
    names = {row["name"] for row in rows() if row["symbol"] in known}

    missed = {row["symbol"] for row in rows() if row["name"] in names and row["symbol"] not in known}

    assert missed == set()


def test_preload_hands_out_ours_of_what_may_have_to_wait(tenant):
    """By dlsym, a name that is intercepted or waits while parked is ours, every other the driver's own function."""
    scene = tenant()
    names = sorted({row["symbol"] for row in rows()})
    program = scene.run(
        f"REAL = {str(scene.machine.libcuda)!r}; NAMES = {names!r}\n"
        + ASK_BOTH
        + "say(files={n: where(ctypes.cast(getattr(real, n), ctypes.c_void_p).value)[0][-1] for n in NAMES})",
        mode="preload",
    )

    files = program.read()["files"]

    assert {name for name, file in files.items() if file == "libaliquot.so"} == handed_out() & set(names)
    assert set(files.values()) == {"libaliquot.so", "libcuda.so.1"}


def test_unknown_names_pass_and_are_counted(tenant):
    """A name that the driver knows and our table does not is handed out as it is, and the empty name is harmless."""
    scene = tenant()
    program = scene.run(
        f"REAL = {str(scene.machine.libcuda)!r}\n" + ASK_BOTH + "cuda = Cuda()\n"
        "say(empty=ask(hook, '', 0, 0)[0], real=ask(real, '', 0, 0)[0],\n"
        "    nothing=ask(hook, 'cuNoSuchThing', 13000, 0)[2])"
    )

    facts = program.read()

    assert facts["empty"] == facts["real"]
    assert facts["nothing"] == 0


def test_exports_nothing_but_the_driver(tenant):
    """The library needs libc alone, and exports the driver's names, dlsym, dlvsym, counters and what is called back."""
    library = tenant().folder.lib / "libaliquot.so"
    exported = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True).stdout
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True).stdout
    names = {line.split()[-1] for line in exported.splitlines()}

    own = {"dlsym", "dlvsym", "aliquot_stats", "aliquot_memory_wanted"}
    assert own == {name for name in names if not name.startswith(("cu", "nvml"))}
    assert [line.split("[")[1] for line in needed.splitlines() if "NEEDED" in line] == ["libc.so.6]"]


QUESTIONS = [
    ("cuMemAlloc", 13000),
    ("cuMemFree", 13000),
    ("cuGraphInstantiate", 11000),
    ("cuGraphInstantiate", 12000),
    ("cuDeviceGetName", 13000),
    ("cuMemAlloc", 14000),
    ("cuMemFree", 14000),
]
ANSWERS = """
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("at", ctypes.c_void_p)]
hook, info, seen = ctypes.CDLL("libcuda.so.1"), Info(), {}
hook.cuInit(0)
for name, version in QUESTIONS:
    out, status, flags = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64(0)
    hook.cuGetProcAddress_v2(name.encode(), ctypes.byref(out), version, flags, ctypes.byref(status))
    ctypes.CDLL(None).dladdr(out, ctypes.byref(info))
    seen[f"{name} {version}"] = out.value - info.base if b"/tenant/" in info.file else "the driver's"
out = (ctypes.c_uint64 * 64)(64 * 8)
hook.aliquot_stats(out)
say(seen=seen, disagreed=out[19])
"""


def ask_renaming_driver(scene, folder: Path, *options: str) -> tuple[dict[str, object], int]:
    """What the hook hands out over renaming_driver.c, as offsets in the hook; and the counter `disagreed`."""
    source = Path(__file__).parent / "programs" / "renaming_driver.c"
    driver = compile_c(folder / "libcuda.so.1", "-shared", "-fPIC", *options, source)
    conf = scene.folder.directory / "tenant.conf"
    lines = [line for line in conf.read_text().splitlines() if not line.startswith("libcuda=")]
    conf.write_text("\n".join([*lines, f"libcuda={driver}"]) + "\n")
    answers = scene.run(f"QUESTIONS = {QUESTIONS!r}\n{ANSWERS}").read()
    return answers["seen"], answers["disagreed"]


def test_a_driver_with_addresses_of_its_own_gets_the_same_hooks(tenant, tmp_path):
    """Where cuGetProcAddress answers with other addresses than the exports', the published table finds the hook."""
    scene = tenant()

    exported, _ = ask_renaming_driver(scene, tmp_path)
    own, _ = ask_renaming_driver(scene, tmp_path, "-DOWN")

    unknown = {"cuMemAlloc 14000", "cuMemFree 14000"}
    assert {k: v for k, v in own.items() if k not in unknown} == {k: v for k, v in exported.items() if k not in unknown}
    assert {name for name, at in exported.items() if at == "the driver's"} == {"cuMemAlloc 14000"}
    assert exported["cuGraphInstantiate 11000"] != exported["cuGraphInstantiate 12000"]


def test_an_intercepted_name_that_a_driver_renames_keeps_the_hook_of_its_function(tenant, tmp_path):
    """The exported function that the driver answers with decides on the hook, under whatever name it was asked for."""
    exported, _ = ask_renaming_driver(tenant(), tmp_path)

    assert exported["cuMemFree 14000"] not in ("the driver's", exported["cuMemFree 13000"])


def test_an_intercepted_name_that_stays_without_a_hook_is_counted(tenant, tmp_path):
    """A function newer than the published table is handed out as it is, and the counter `disagreed` tells."""
    exported, disagreed = ask_renaming_driver(tenant(), tmp_path)

    assert (exported["cuMemAlloc 14000"], disagreed) == ("the driver's", 1)


def test_counters_fill_no_more_than_the_room_that_the_caller_has(tenant):
    """aliquot_stats takes the size of the caller's buffer from its first word, and refuses one without a size."""
    program = tenant().run(
        "hook = Cuda().lib; room = (ctypes.c_uint64 * 8)(4 * 8, *[77] * 7); none = (ctypes.c_uint64 * 8)()\n"
        "say(answers=[hook.aliquot_stats(room), hook.aliquot_stats(none)], room=list(room), none=list(none))"
    )
    facts = program.read()

    assert [0, -1] == facts["answers"]
    assert [77] * 4 == facts["room"][4:]
    assert 8 * 8 < facts["room"][0]
    assert [0] * 8 == facts["none"]
