"""Facts about the installed package."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """Its version; `unknown` for a source tree that runs uninstalled."""
    try:
        return metadata.version("aliquot")
    except metadata.PackageNotFoundError:
        return "unknown"
