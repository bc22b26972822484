"""The clients' environments: each from its lock file, in $XDG_CACHE_HOME/aliquot/frameworks (or ~/.cache/...).

They take 15 GB together; what is there already is used again, and follows the lock file when that changes.
"""

import functools
import os
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
UV = HERE.parents[1] / ".venv" / "bin" / "uv"


def cache() -> Path:
    """The folder of the environments."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "aliquot" / "frameworks"


@functools.cache
def python(name: str) -> Path:
    """The interpreter of an environment, which is fetched where it is missing.

    Raises:
        subprocess.CalledProcessError: uv could not, and has said why.
    """
    target = cache() / name
    environment = os.environ | {"UV_PROJECT_ENVIRONMENT": str(target)}
    subprocess.run([UV, "sync", "--frozen", "--quiet", "--project", HERE / name], check=True, env=environment)
    return target / "bin" / "python"
