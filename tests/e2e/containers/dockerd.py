"""Debian's docker, unpacked and not installed, with a daemon, a network and processes of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from cluster import cgroups
from cluster.parts import until
from podman import Podman


class Docker(Podman):
    """docker, whose daemon is in the mount namespace that a podman would be in, and reads devices from `cdi`."""

    tool = "docker"

    def __init__(self, tree: Path, cdi: Path, uid: int = 0) -> None:
        super().__init__(tree, cdi, uid)
        self.environment["DOCKER_HOST"] = f"unix://{self.folder}/docker.sock"
        settings = {
            "hosts": [self.environment["DOCKER_HOST"]],
            "features": {"cdi": True},
            "data-root": f"{self.folder}/storage",
            "exec-root": f"{self.folder}/state",
            "pidfile": f"{self.folder}/pid",
            "storage-driver": "vfs",
            "bridge": "none",
            "iptables": False,
            "cgroup-parent": f"/{self.folder.name}",
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "default-ulimits": {"nofile": {"Name": "nofile", "Soft": 1024, "Hard": 1024}},
        }
        (self.folder / "daemon.json").write_text(json.dumps(settings))
        # Whatever the daemon starts ends with it.
        alone = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
        with (self.folder / "log").open("wb") as log:
            self._daemon = subprocess.Popen(
                self.words(*alone, "dockerd", "--config-file", str(self.folder / "daemon.json")),
                env=self.environment, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            until(lambda: self("info").returncode == 0 or self._daemon.poll() is not None, "docker's answer")
        except BaseException:
            self.close()
            raise

    def image(self, root: Path) -> list[str]:
        """The words that name the image of a container which has that root file system."""
        if not self("images", "--quiet").stdout:
            files = subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE)
            words = self.words("docker", "import", "-", "root")
            subprocess.run(words, env=self.environment, stdin=files.stdout, capture_output=True, check=True)
            files.communicate()
        return ["--network=none", "root"]

    def close(self) -> None:
        """End all containers with the daemon, and remove everything."""
        self._daemon.kill()
        self._daemon.wait(30)
        super().close()
        cgroups.remove(self.folder.name)
