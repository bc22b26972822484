"""kubectl and helm without a cluster: the real programs read the command line, then find nobody to talk to."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from docpages import ROOT

# The cluster tests keep the programs in a cache of their own.
sys.path.append(str(ROOT / "tests" / "e2e"))
from cluster import cache

NOBODY = "http://127.0.0.1:1"
UNREACHABLE = re.compile(r"connection refused|was refused|unable to connect|cluster unreachable", re.IGNORECASE)


def find(program: str) -> str:
    """The program's path in the cache of the cluster tests, or on PATH; empty where there is none."""
    patterns = {"kubectl": "packages-*/usr/bin/kubectl", "helm": "helm-*/bin/helm"}
    kept = sorted(cache.root().glob(patterns[program]), key=lambda path: path.stat().st_mtime)
    if kept:
        return str(kept[-1])
    from shutil import which

    return which(program) or ""


def complaint(command: str, folder: Path) -> str:
    """What kubectl or helm has against a command line, empty when it only misses the cluster.

    `helm install` and `helm upgrade` are rendered as `helm template` does, which has their flags.
    """
    words = shlex.split(command, comments=True)
    program = find(words[0])
    if words[0] == "helm":
        words = _template(words)
        words += [] if words[1] == "template" else ["--kube-apiserver", NOBODY]
    else:
        words += ["--server", NOBODY, "--request-timeout=2s"]
    quiet = {"KUBECONFIG": os.devnull, "HOME": str(folder), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [program, *words[1:]],
        cwd=folder,
        env=quiet,
        capture_output=True,
        text=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
    )
    return "" if done.returncode == 0 or UNREACHABLE.search(done.stderr) else (done.stderr or done.stdout).strip()


def _template(words: list[str]) -> list[str]:
    """`helm install NAME CHART ...` as `helm template NAME CHART ...`."""
    if words[1] not in ("install", "upgrade"):
        return words
    known = {"--install", "--wait", "--take-ownership", "--reuse-values", "--reset-then-reuse-values"}
    return ["helm", "template", *(word for word in words[2:] if word not in known)]
