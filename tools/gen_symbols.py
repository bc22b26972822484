"""Write the tables of native/symbols: which name, version and stream flavour is which exported symbol.

The driver exports several functions for one name: `cuMemAlloc` asked for at version 3020 is the symbol
`cuMemAlloc_v2`, and most calls that take a stream have a twin for the per-thread default stream (`_ptsz`, or `_ptds`
for calls without a stream argument). The facts are read from the headers of the pip wheel `nvidia-cuda-runtime`
(typedefs for names and versions, `#define`s and declarations for the exact symbols) and from the module `pynvml`;
only names and numbers are kept, no header text.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from generated import ROOT, parser, settle

WHEEL = "nvidia-cuda-runtime"
SYMBOLS = ROOT / "native" / "symbols"
TYPEDEF_FILES = (
    "cudaTypedefs.h",
    "cudaGLTypedefs.h",
    "cudaEGLTypedefs.h",
    "cudaVDPAUTypedefs.h",
    "cudaProfilerTypedefs.h",
)
HEADER_FILES = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h")
TYPEDEF = re.compile(r"PFN_(cu[A-Za-z0-9_]+?)_v(\d+)(?:_(ptsz|ptds))?\)")
ALIAS = re.compile(r"^\s*#\s*define\s+(cu[A-Z]\w*)\s+(?:__CUDA_API_(?:PTSZ|PTDS)\()?(cu[A-Z]\w*)\)?\s*$", re.MULTILINE)
# A name that newer headers define as another function. No typedef tells the version: programs ask for it at that of the
# headers that brought the definition, 12.0.
RENAMED = {"cuGraphInstantiate": (12000, "cuGraphInstantiateWithFlags")}
DECLARED = re.compile(r"CUDAAPI\s+(cu[A-Z]\w*)\s*\(")


class Row(NamedTuple):
    """One line of cuda.tsv; `stream` is plain, ptsz or ptds."""

    name: str
    version: int
    stream: str
    symbol: str


def include_dir() -> Path:
    """The folder of the CUDA headers of the newest wheel, not of an older CUDA's wheel that may be installed too."""
    try:
        (typedefs,) = [f for f in distribution(WHEEL).files or () if f.name == TYPEDEF_FILES[0]]
    except (PackageNotFoundError, ValueError):
        sys.exit(f"gen_symbols: {TYPEDEF_FILES[0]} not found; install the wheel {WHEEL}")
    return Path(str(typedefs.locate())).parent


def texts(include: Path, names: tuple[str, ...]) -> str:
    """The named headers, one after another; a header the wheel does not carry is left out."""
    return "\n".join((include / name).read_text("utf-8") for name in names if (include / name).exists())


def suffix_order(name: str, versions: list[int], newest: int) -> dict[int, str]:
    """Exact symbol of each version of `name` (oldest first in `versions`), counted down from the suffix `newest`."""
    numbers = range(newest, newest - len(versions), -1)
    return {v: name if n <= 1 else f"{name}_v{n}" for v, n in zip(reversed(versions), numbers, strict=True)}


def cuda_rows(include: Path) -> Iterator[Row]:
    """Every (name, version, stream flavour) of the driver interface with its exact exported symbol."""
    typedefs = {(n, int(v), s or "plain") for n, v, s in TYPEDEF.findall(texts(include, TYPEDEF_FILES))}
    headers = texts(include, HEADER_FILES)
    declared = set(DECLARED.findall(headers))
    alias = {name: target for name, target in ALIAS.findall(headers) if target.startswith(name)}
    versions: dict[str, set[int]] = defaultdict(set)
    for name, version, stream in typedefs:
        if stream == "plain":
            versions[name].add(version)
    for name, version, _ in typedefs:
        if not any(v <= version for v in versions[name]):
            versions[name].add(version)
    symbols = {}
    for name, found in versions.items():
        known = re.findall(rf"^{name}_v(\d+)$", "\n".join((*declared, *alias.values())), re.MULTILINE)
        symbols[name] = suffix_order(name, sorted(found), max(map(int, known), default=1))
    for name, version, stream in sorted(typedefs):
        base = symbols[name][max(v for v in versions[name] if v <= version)]
        yield Row(name, version, stream, base if stream == "plain" else f"{base}_{stream}")
    for name, (version, symbol) in RENAMED.items():
        if dict(ALIAS.findall(headers)).get(name) != symbol:
            sys.exit(f"gen_symbols: cuda.h no longer defines {name} as {symbol}")
        yield Row(name, version, "plain", symbol)
    for name in sorted(declared - {s for by in symbols.values() for s in by.values()}):
        stem = re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", name)
        if stem not in symbols:
            yield Row(name, 2000, "plain", name)


def def_line(row: Row) -> str:
    """The row for the C preprocessor: ROW(name, version, symbol) or TWIN(name, version, flavour, symbol, base).

    RENAMED(name, version, symbol) is a row whose symbol has a row of its own as well.
    """
    if row.name in RENAMED and row.symbol == RENAMED[row.name][1]:
        return f"RENAMED({row.name}, {row.version}, {row.symbol})"
    if row.stream == "plain":
        return f"ROW({row.name}, {row.version}, {row.symbol})"
    return f"TWIN({row.name}, {row.version}, {row.stream}, {row.symbol}, {row.symbol[:-5]})"


def nvml_names() -> list[str]:
    """Every NVML function that the Python binding nvidia-ml-py looks up."""
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        sys.exit("gen_symbols: pynvml not found; install nvidia-ml-py")
    text = Path(spec.origin).read_text("utf-8")
    return sorted(set(re.findall(r"_nvmlGetFunctionPointer\(\s*[\"'](nvml\w+)[\"']", text)))


def main() -> int:
    """Write the tables, or compare."""
    chosen = parser(__doc__).parse_args()
    rows, names = list(cuda_rows(include_dir())), nvml_names()
    tables = {
        "cuda.tsv": ["name\tversion\tstream\tsymbol", *("\t".join(map(str, row)) for row in rows)],
        "cuda.def": [def_line(row) for row in rows],
        "nvml.txt": names,
        "nvml.def": [f"NVML({name})" for name in names],
    }
    return settle({SYMBOLS / name: "\n".join(lines) + "\n" for name, lines in tables.items()}, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
