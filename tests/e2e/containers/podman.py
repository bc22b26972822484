"""Debian's podman, unpacked and not installed, with everything of its own: storage, state, `/var/run/cdi`.

It starts containers by runc and cgroupfs, which also works where cgroups are of both versions.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from cluster.packages import LIBRARIES

# Another /run, for what runc writes there and for the devices; aliquot's files are at their own paths. The loader finds
# podman's libraries by its cache: podman that cleans up after a container is started with an environment of its own.
ROOM = """
mount --make-rprivate / && mount -t tmpfs run /run && mkdir /run/cdi && mount --bind "$0" /run/cdi
chmod 755 /run && /sbin/ldconfig -C "$1/ld.so.cache" "$2"
for file in passwd subuid subgid ld.so.cache; do mount --bind "$1/$file" /etc/$file || exit; done
echo ready && exec sleep infinity
"""
SETTINGS = """
[containers]
netns = "none"
log_driver = "k8s-file"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
conmon_path = ["{tree}/usr/bin/conmon"]
[engine.runtimes]
runc = ["{tree}/usr/sbin/runc"]
"""
ACCOUNT = 4711
"""An account that only exists where podman runs, with 65,536 further ids for its containers."""
STORAGE = """
[storage]
driver = "vfs"
graphroot = "{folder}/storage"
runroot = "{folder}/state/run"
"""


class Podman:
    """podman in a mount namespace of its own, in which it reads devices from `cdi`; as `uid`, if not as root."""

    def __init__(self, tree: Path, cdi: Path, uid: int = 0) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pm-"))
        self.folder.chmod(0o755)
        self._uid = uid
        if uid:  # which may not look where the tree lies
            subprocess.run(["cp", "-a", str(tree), str(self.folder / "tree")], check=True)
            tree = self.folder / "tree"
            tree.chmod(0o755)
        for name in ("home", "storage", "state", "tmp"):
            (self.folder / name).mkdir()
            os.chown(self.folder / name, uid, uid)
        (self.folder / "containers.conf").write_text(SETTINGS.format(tree=tree))
        (self.folder / "storage.conf").write_text(STORAGE.format(folder=self.folder))
        self.environment = {
            "PATH": f"{tree}/usr/bin:{tree}/usr/sbin:/usr/bin:/usr/sbin:/bin:/sbin",
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "XDG_RUNTIME_DIR": str(self.folder / "state"),
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }
        (self.folder / "passwd").write_text(f"root:x:0:0::/root:/bin/sh\nann:x:{ACCOUNT}:{ACCOUNT}::/:/bin/sh\n")
        for name in ("subuid", "subgid"):  # as useradd gives them
            (self.folder / name).write_text("ann:231072:65536\n")
        words = ["unshare", "--mount", "sh", "-c", ROOM, str(cdi), str(self.folder), str(tree / LIBRARIES)]
        self._room = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._room.stdout and self._room.stdout.readline() == "ready\n"

    tool = "podman"

    def image(self, root: Path) -> list[str]:
        """The words that name the image of a container which has that root file system."""
        return ["--rootfs", str(root)]

    def words(self, *words: str, rights: tuple[str, ...] = ()) -> list[str]:
        """A command of the account where podman runs, with more `rights` by options of setpriv."""
        who = ["setpriv", f"--reuid={self._uid}", f"--regid={self._uid}", "--clear-groups", *rights]
        return ["nsenter", f"--mount=/proc/{self._room.pid}/ns/mnt", *(who if self._uid else []), *words]

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of it to its end."""
        return subprocess.run(
            self.words(self.tool, *words), env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )

    def close(self) -> None:
        """End all containers, and remove everything; of an account also the process that keeps its namespaces."""
        self("rm", "--all", "--force", "--time", "0")
        for pause in self.folder.glob("state/**/pause.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pause.read_text()), signal.SIGKILL)
        self._room.kill()
        self._room.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)
