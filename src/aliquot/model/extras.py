"""Which optional part of the package a third-party module belongs to, and how parts are added."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

from aliquot.model.errors import AliquotError

PACKAGE: Final = "aliquot-gpu"
"""The distribution's name; in the package index `aliquot` is another project."""
LAB_PACKAGE: Final = "aliquot-lab"
"""The distribution with simulator, benchmarks and demonstration."""
EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "cluster": ("cryptography", "google", "grpc", "httptools", "httpx2", "lightkube", "uvloop"),
    "otel": ("opentelemetry",),
    "top": ("textual",),
}
"""Extra of pyproject.toml -> the top-level modules that come with it."""


class MissingExtra(AliquotError):
    """An optional part of the package is not installed."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"this needs {module}, which is not installed: {adding(extra)}")


def adding(extra: str = "", package: str = PACKAGE) -> str:
    """The command that adds an extra to the environment that this program runs in: a tool's environment has no pip.

    It names the clone or the wheel that was installed, or the laboratory's wheel beside that.
    """
    # Only for the error: metadata loads the parsers of e-mail, which no start of a program should pay for.
    import contextlib
    import json
    import shlex
    from importlib import metadata
    from urllib.parse import unquote

    installer, origin = "", ""
    with contextlib.suppress(metadata.PackageNotFoundError):
        installed_here = metadata.distribution(PACKAGE)
        installer = (installed_here.read_text("INSTALLER") or "").strip()
        url = json.loads(installed_here.read_text("direct_url.json") or "{}")  # PEP 610
        origin = unquote(str(url.get("url", "")).removeprefix("file://"))
        if "dir_info" in url:
            return f"make -C {shlex.quote(origin)} setup{extra and f' EXTRAS={extra}'}"
    stem, wanted = (name.replace("-", "_") for name in (PACKAGE, package))
    wheel = (origin or f"dist/{stem}-VERSION.whl").replace(stem, wanted)
    wheel = shlex.quote(wheel + (extra and f"[{extra}]"))
    if "/pipx/venvs/" in sys.prefix:
        return f"pipx runpip {PACKAGE} install {wheel}"
    return f"uv pip install {wheel} --python {sys.prefix}" if installer == "uv" else f"pip install {wheel}"


def missing_extra(module: str) -> MissingExtra | None:
    """The error to show for a module that cannot be imported; None where no extra has it."""
    top = module.partition(".")[0]
    return next((MissingExtra(top, extra) for extra, modules in EXTRAS.items() if top in modules), None)


def installed(extra: str) -> bool:
    """Whether every module of an extra can be found."""
    return all(find_spec(module) is not None for module in EXTRAS[extra])


def require(module: str) -> None:
    """Check for an optional module before work begins that needs it, in this process or in a child.

    Raises:
        MissingExtra: The module is not installed.
    """
    if find_spec(module) is None and (error := missing_extra(module)) is not None:
        raise error
