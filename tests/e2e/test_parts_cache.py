"""How the cluster's parts are kept: made once, whole or not at all, and a clear word when they cannot be had."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import cache, packages, programs
from cluster.cache import Unavailable
from cluster.prepare import prepare

HERE = Path(__file__).resolve().parent
MAKER = """
import sys, time
from cluster import cache
def make(into):
    print("made", flush=True)
    time.sleep(0.3)
    (into / "part").write_text("whole")
print((cache.kept("thing-1", make) / "part").read_text())
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "RUNNING_TEST", "NONE")  # parts are made here, which no other test may do
    return tmp_path / "aliquot"


def test_two_runs_at_once_make_a_part_once(own_cache: Path):
    """Of several runs that miss the same part one makes it, and the others wait for it."""
    command = [sys.executable, "-c", MAKER]
    environment = {"PYTHONPATH": str(HERE), "XDG_CACHE_HOME": str(own_cache.parent)}
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(3)]

    printed = [run.communicate(timeout=30)[0].split() for run in runs]

    assert 1 == sum("made" in words for words in printed)
    assert all("whole" in words for words in printed)


def test_a_part_that_fails_half_way_is_not_kept(own_cache: Path):
    """A failed build leaves nothing that a later run could take for whole."""

    def fail(into: Path) -> None:
        (into / "half").write_text("")
        raise Unavailable("no network")

    with pytest.raises(Unavailable):
        cache.kept("thing-1", fail)

    assert ["thing.lock"] == [path.name for path in own_cache.iterdir()]


def test_a_version_of_kubernetes_without_a_module_is_refused(monkeypatch: pytest.MonkeyPatch):
    """ALIQUOT_KUBERNETES names a version that tools/ has a module for; the refusal lists these."""
    monkeypatch.setenv("ALIQUOT_KUBERNETES", "1.20.0")

    with pytest.raises(Unavailable, match=r"1\.20\.0: tools/ has modules for 1\.37\.1; name one"):
        programs.folder()


def test_a_program_that_does_not_build_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """When Go fails, the message has the command and what Go said, and nothing is kept."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(
        "#!/bin/sh\n[ $1 = version ] && echo go version go1.99.0 linux/amd64 && exit\necho no network >&2; exit 1\n"
    )
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")

    with pytest.raises(Unavailable, match="failed in tools/: no network"):
        programs.folder()


def test_a_machine_without_debian_packages_is_told_so(monkeypatch: pytest.MonkeyPatch):
    """Where there is no Debian archive the message says what it was wanted for."""
    monkeypatch.setattr(packages, "KEYRING", Path("/nowhere"))

    with pytest.raises(Unavailable, match="not a Debian machine"):
        packages.folder()


def test_where_there_can_be_no_cluster_the_reason_is_told(monkeypatch: pytest.MonkeyPatch):
    """Without root nothing is built or fetched; the reason says what is wanted."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(Unavailable, match="it needs root"):
        prepare()


@pytest.mark.skipif(os.geteuid() != 0, reason="to be root with less needs root")
def test_root_of_a_plain_container_is_told_what_it_may_not():
    """Without the right to mount there is no cluster: told before six minutes of building, with the way out."""
    code = "import cluster.prepare as p; print(p.why_not())"
    bare = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-c", code]
    done = subprocess.run(bare, capture_output=True, text=True, check=True, cwd=HERE)

    assert "root may make no namespaces here (unshare: " in done.stdout and "--privileged" in done.stdout
