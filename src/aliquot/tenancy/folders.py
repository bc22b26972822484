"""A tenant's folder, made whole or not at all: its mark is written last, and names what the folder was made for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from aliquot.driver.injection import TenantFolder, provision
from aliquot.lib.files import write_whole

MARK: Final = "made"


def made_for(directory: Path) -> str | None:
    """What a whole folder was made for; None for one that is missing or half made."""
    try:
        return (directory / MARK).read_text()
    except OSError:
        return None


def make_folder(folder: TenantFolder, hook: Path, purpose: str) -> None:
    """Make a folder in place of what is there, with the hook unless it is a bare one.

    Raises:
        InjectionError: see `provision`.
        OSError: it cannot be made; a part of it may be there.
    """
    shutil.rmtree(folder.directory, ignore_errors=True)
    provision(folder.directory, folder.conf, None if folder.bare else hook)
    write_whole(folder.directory / MARK, purpose.encode(), synced=False, mode=0o644)


def remove_strangers(parent: Path, known: set[Path]) -> list[str]:
    """Remove the folders that are not `known`; returns their names."""
    strangers = sorted(set(parent.glob("*")) - known)
    for stranger in strangers:
        shutil.rmtree(stranger, ignore_errors=True)
    return [stranger.name for stranger in strangers]
