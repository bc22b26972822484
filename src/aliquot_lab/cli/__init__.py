"""Commands that the laboratory adds to `aliquot`: the tables that `aliquot.cli.lazy` reads by an entry point."""

from __future__ import annotations

from typing import Final

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "demo": (f"{__name__}.demo", "Show what Aliquot does, with real CUDA programs."),
    "bench": (f"{__name__}.bench", "Measure Aliquot on your GPU or an emulated one."),
    "sim": (f"{__name__}.sim", "Try placement policies on a trace, in virtual time."),
}
EXAMPLES: Final[dict[str, tuple[str, str]]] = {
    "demo": ("a figure of KubeShare in under five minutes", "aliquot demo fig6 --fast --out demo-out"),
    "bench": ("the hook's cost of a launch", "aliquot bench gate"),
    "sim": (
        "two policies on generated jobs, side by side in a report",
        "aliquot sim run --nodes 'v100x4*8' --trace kubeshare:rate=150 --policy aliquot,binpack --out out",
    ),
}
