"""What the documentation tells users of a cluster to type, typed against a real control plane with Aliquot on it."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.control_plane import ControlPlane
from cluster.ours import OurScheduler, OurWebhook, install_crds
from scheduling import asking

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "integration" / "docs"))

from docpages import Block, Step, blocks, sections  # noqa: E402
from docplay import play  # noqa: E402
from docroom import Room  # noqa: E402

PORT, WEBHOOK_PORT = 8770, 8771


class ClusterRoom(Room):
    """A room with a cluster outside: kubectl is obeyed."""

    def __init__(self, plane: ControlPlane, counts: Counter[str]) -> None:
        super().__init__(counts)
        (self.home / "bin" / "kubectl").symlink_to(plane.programs.program("kubectl"))
        self.environment |= {"KUBECONFIG": str(plane.kubeconfig)}

    def ask_kube(self, place: str, block: Block, step: Step) -> None:
        self.counts["run on a cluster"] += 1
        self.type(place, block, step)


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Two nodes of four V100, our kinds of objects, scheduler and webhook."""
    install_crds(control_plane)
    control_plane.fake_nodes(2, "v100", gpus=4, prefix="docs")
    webhook = OurWebhook(control_plane, WEBHOOK_PORT)
    webhook.register()
    with asking(OurScheduler(control_plane, PORT, *webhook.flags)):
        webhook.wait_trusted()
        yield control_plane


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_cluster_users_page_does_what_it_says(plane: ControlPlane):
    """Pod, Deployment and SharePod get their shares, the one that is too large is explained, and all are deleted."""
    counts: Counter[str] = Counter()
    path = ROOT / "docs" / "quickstart-cluster-user.md"
    play(path, ClusterRoom(plane, counts), {})

    assert sum(len(block.steps) for block in blocks(path)) == counts["run on a cluster"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_administrators_quota_is_kept(plane: ControlPlane, tmp_path: Path):
    """The namespace, its quota and what is left of it, as the page shows them."""
    path = tmp_path / "page.md"
    path.write_text(sections(ROOT / "docs" / "quickstart-administrator.md")["Give teams their part"])
    counts: Counter[str] = Counter()
    play(path, ClusterRoom(plane, counts), {})

    assert 3 == counts["run on a cluster"]
