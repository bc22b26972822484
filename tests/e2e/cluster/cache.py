"""Where built and fetched parts are kept between runs, and how two runs keep out of each other's way."""

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class Unavailable(Exception):
    """The test cluster cannot be had here; the text is one sentence for a person."""


RUNNING_TEST = "PYTEST_CURRENT_TEST"
"""The variable by which a running test is known; pytest sets it."""


def root() -> Path:
    """`$XDG_CACHE_HOME/aliquot`, or `~/.cache/aliquot`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "aliquot"


def key(*parts: bytes) -> str:
    """Twelve hex digits that change when a part changes."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:12]


def say(text: str) -> None:
    """One line of progress."""
    print(f"prepare: {text}", file=sys.stderr, flush=True)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Holds the cache's lock of this name; a second run waits, and says that it does."""
    root().mkdir(parents=True, exist_ok=True)
    with (root() / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another run prepares {name}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, made by `make(folder)` if it is not there.

    It appears whole or not at all: `make` fills a folder beside it that is renamed when `make` returns. Older
    folders of the same kind (the text before the last dash) stay, since another checkout may use them.

    Raises:
        Unavailable: it is not there, and a test is running, whose time limit is not for this.
    """
    final = root() / name
    if final.is_dir():
        return final
    if test := os.environ.get(RUNNING_TEST):
        raise Unavailable(f"{name} could not be used in {test}: it is made before the first test, by `make prepare`")
    with locked(name.rpartition("-")[0]):
        if final.is_dir():
            return final
        fresh = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=root()))
        try:
            make(fresh)
            fresh.chmod(0o755)
            fresh.rename(final)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return final
