"""Which files are the driver's: libraries by the start of their names, and programs (names.toml).

Those that compute, video and management need; those of graphics, and others by name, where the administrator asks for
them. libOpenCL.so.1 is no file of the driver's: images bring their own loader for it, and so they do for libGL.so.1.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Final

from aliquot.model.errors import UserError

_NAMES: Final = tomllib.loads(Path(__file__).with_name("names.toml").read_text("utf-8"))
LIBRARIES: Final = tuple(_NAMES["libraries"])
BINARIES: Final = tuple(_NAMES["binaries"])
LIBRARY_FOLDERS: Final = tuple(_NAMES["library_folders"])
PROGRAM_FOLDERS: Final = tuple(_NAMES["program_folders"])
LOADER_FOLDERS: Final = tuple(_NAMES["loader_folders"])
GRAPHICS: Final = tuple(_NAMES["graphics"])
GRAPHICS_FILES: Final = tuple(f"{top}/{name}" for name in _NAMES["graphics_files"] for top in ("usr/share", "etc"))
GLX: Final = ("libGLX_nvidia.so", "libGLX_indirect.so.0")
"""A library and the name by which libGL loads it where it knows of no vendor."""
ASKED_BY_NAME: Final = "graphics"
"""The word for all libraries of graphics."""
# The libraries that the hook replaces in the shared tree.
SUBSTITUTED: Final = ("libcuda.so", "libnvidia-ml.so")


class BadLibrary(UserError):
    """A word that names no library."""


def wanted(words: str) -> frozenset[str]:
    """The libraries that are mirrored: the usual ones, and those of `graphics` or by name, as `libnvidia-fbc.so`.

    Raises:
        BadLibrary: a word is neither.
    """
    found = {*LIBRARIES}
    for word in filter(None, (word.strip() for word in words.split(","))):
        if word == ASKED_BY_NAME:
            found.update(GRAPHICS)
        elif re.fullmatch(r"lib[A-Za-z0-9_+.-]+\.so", word):
            found.add(word)
        else:
            raise BadLibrary(f"extra-libraries {word!r} is not a library; write graphics, or names as libnvidia-fbc.so")
    return frozenset(found)


def is_drivers(name: str, libraries: Collection[str] = LIBRARIES) -> bool:
    """Whether a library of that name, such as `libcuda.so.1`, is one of these."""
    return stem(name) in libraries


def stem(name: str) -> str:
    """The name without its version: `libcuda.so` of `libcuda.so.570.124.06`."""
    head, so, _ = name.partition(".so")
    return head + so
