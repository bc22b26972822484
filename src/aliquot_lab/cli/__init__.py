"""Commands that the laboratory adds to `aliquot`: the table that `aliquot.cli.lazy` reads by an entry point."""

from __future__ import annotations

from typing import Final

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "demo": (f"{__name__}.demo", "Show what Aliquot does, with real CUDA programs."),
    "bench": (f"{__name__}.bench", "Measure Aliquot on your GPU or an emulated one."),
    "sim": (f"{__name__}.sim", "Try placement policies on a trace, in virtual time."),
}
