"""The first process in a cluster's namespaces: makes the rooms, then lives exactly as long as its standard input.

Started by `namespaces.Namespaces` as process 1 of a PID namespace. Whoever started it holds the other end of its
standard input, so when that process ends, however it ends, the kernel ends everything in here with it.

usage: holder.py STATE_DIR BUSYBOX ADDRESS...
"""

import signal
import subprocess
import sys
from pathlib import Path

# What kubelet sets on a machine's kernel; it gets a file of its own to write to instead, and finds it as it wants it.
SYSCTLS = {
    "vm/overcommit_memory": "1",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def run(*command: str) -> None:
    """Runs a command that has to succeed."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def mounts(state: Path) -> None:
    """Puts folders of this cluster over those that kubelet and containerd write to by fixed names."""
    for name in ("var/lib", "var/log", "run"):
        (state / name).mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", str(state / name), f"/{name}")
    for name, value in SYSCTLS.items():
        own = state / "sysctl" / name.replace("/", ".")
        own.parent.mkdir(exist_ok=True)
        own.write_text(value + "\n")
        if Path("/proc/sys", name).exists():
            run("mount", "--bind", str(own), f"/proc/sys/{name}")


def network(busybox: str, addresses: list[str]) -> None:
    """Loopback and nothing else; the cluster's own addresses are further addresses of it."""
    run(busybox, "ip", "link", "set", "lo", "up")
    for address in addresses:
        run(busybox, "ip", "address", "add", f"{address}/32", "dev", "lo")
    # So that a program that looks for the way out gets an answer; it ends here.
    run(busybox, "ip", "route", "add", "default", "dev", "lo", "src", addresses[0])
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def main() -> None:
    """Makes the rooms, says so, and waits for the end."""
    state, busybox, addresses = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    mounts(state)
    network(busybox, addresses)
    # Orphans fall to process 1; ignored, the kernel buries them itself.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    sys.stdin.buffer.read()


main()
