"""A cluster to play with: `python -m cluster` (see `make cluster`). It lives until its shell or this program ends."""

import argparse
import os
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from .cache import Unavailable, say
from .control_plane import ControlPlane
from .fake import BOARD, PROFILES, TAINT
from .images import EXAMPLE
from .kubelet_node import KubeletNode
from .namespaces import NODE_ADDRESS
from .ours import HOLDERS, PORT, agent_pod, serve_pages
from .prepare import Parts, prepare
from .whole import whole

WEB_PORT = 8772


def options() -> argparse.Namespace:
    """What the person asked for."""
    parser = argparse.ArgumentParser(prog="cluster", description="Kubernetes with fake GPU nodes, on this machine only")
    parser.add_argument("--nodes", type=int, default=4, metavar="N", help="fake GPU nodes (default 4)")
    parser.add_argument(
        "--profile",
        action="append",
        choices=sorted(PROFILES),
        help="their GPUs, also several in turn (default v100, then a100)",
    )
    parser.add_argument("--gpus", type=int, default=BOARD, metavar="G", help="GPUs a node (default 8)")
    parser.add_argument(
        "--real", default="v100x4", metavar="GPUS", help="emulated GPUs of the real node beside them (default v100x4)"
    )
    parser.add_argument("--no-kubelet", action="store_true", help="no real node, and nothing of Aliquot runs")
    parser.add_argument("--prepare", action="store_true", help="only build and fetch what is missing")
    parser.add_argument("command", nargs="*", help="run this with kubectl ready, and end with it (default: a shell)")
    return parser.parse_args()


def bring_up(plane: ControlPlane, wanted: argparse.Namespace, stack: ExitStack) -> None:
    """Starts everything that was asked for, and says where it is."""
    plane.start()
    say(f"control plane ready after {plane.started_in_s:.1f} s: {plane.url}")
    profiles = wanted.profile or ["v100", "a100"]
    for number, profile in enumerate(profiles):
        share = len(range(number, wanted.nodes, len(profiles)))
        if share:
            names = plane.fake_nodes(share, profile, gpus=wanted.gpus, apart=not wanted.no_kubelet)
            say(f"  fake nodes of {wanted.gpus} {profile}: {', '.join(names)}")
    if wanted.no_kubelet:
        return
    node = KubeletNode(plane)
    node.start()
    scheduler = ("--bind", f"0.0.0.0:{PORT}", "--web", f"127.0.0.1:{WEB_PORT}")
    agent = ("--display-address", NODE_ADDRESS)
    stack.enter_context(whole(node, wanted.real, scheduler_flags=scheduler, agent_flags=agent))
    serve_pages(plane, node.name)
    agent_pod(plane, HOLDERS, node.name)
    os.environ["ALIQUOT_DASHBOARD"] = stack.enter_context(plane.exposed(WEB_PORT))
    say(f"  {node.name}: a real node with {wanted.real}; its images: {', '.join(node.images())}")
    say(f"  only pods that tolerate {TAINT['key']} go to the fake nodes, where nothing runs and no agent measures")
    say(f"dashboard: {os.environ['ALIQUOT_DASHBOARD']}")
    say(f"try: kubectl apply -f examples/cluster/half.yaml && kubectl logs -f half   (image {EXAMPLE})")


def environment(plane: ControlPlane, parts: Parts, room: Path) -> dict[str, str]:
    """kubectl of the right version first on PATH, and the administrator's kubeconfig."""
    (room / "bin").mkdir(exist_ok=True)
    (room / "bin/kubectl").symlink_to(parts.program("kubectl"))
    if (ours := Path(sys.executable).with_name("kubectl-aliquot")).exists():
        (room / "bin/kubectl-aliquot").symlink_to(ours)
    return {**os.environ, "KUBECONFIG": str(plane.kubeconfig), "PATH": f"{room}/bin:{os.environ['PATH']}"}


def stay(plane: ControlPlane, command: list[str], ready: dict[str, str]) -> int:
    """Until the command or the shell ends, or, without a terminal, until a signal comes."""
    say(f"export KUBECONFIG={shlex.quote(ready['KUBECONFIG'])}")
    if command:
        return subprocess.run(command, env=ready).returncode
    if sys.stdin.isatty():
        say("a shell with kubectl ready; the cluster ends with it")
        return subprocess.run([os.environ.get("SHELL", "/bin/sh")], env=ready).returncode
    say("the cluster ends with this program (Ctrl-C)")
    signal.pause()
    return 0


def main() -> int:
    """Runs the cluster; exit status 2 where there can be none, else that of the command."""
    wanted = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        parts = prepare()
    except Unavailable as error:
        print(f"no cluster: {error}", file=sys.stderr)
        return 2
    if wanted.prepare:
        return 0
    plane = ControlPlane(parts)
    try:
        with ExitStack() as stack:
            bring_up(plane, wanted, stack)
            return stay(plane, wanted.command, environment(plane, parts, plane.rooms.state))
    except KeyboardInterrupt:
        return 0
    finally:
        plane.close()
        say("everything is gone")


sys.exit(main())
