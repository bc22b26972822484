"""Images with an older C library, on a node with the native parts of a release."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.cache import Unavailable
from cluster.kubelet_node import KubeletNode
from container_kinds import DEBIAN, EMPTY, REDHAT, Kind, end_of, right, start, with_images
from node_scene import Scene, running
from release_parts import release_parts

# The first run installs a compiler and builds with it.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
OLD_KINDS = {
    "debian": Kind("debian-old", ["/client"], DEBIAN),
    "debian-new-cache": Kind("debian-old", ["/bin/sh", "-c", "/usr/sbin/ldconfig && exec /client"], DEBIAN),
    "redhat": Kind("redhat-old", ["/client"], REDHAT),
    "redhat-empty-environment": Kind("redhat-old", EMPTY, REDHAT),
    "today": Kind("debian", ["/client"], DEBIAN),
    "musl": Kind("musl", ["/client"]),
}


@pytest.fixture(scope="module")
def parts() -> Path:
    """The native parts of a release."""
    try:
        return release_parts()
    except Unavailable as error:
        pytest.skip(f"no native parts of a release: {error}")


@pytest.fixture
def released(kubelet_node: KubeletNode, parts: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """An agent with these parts, and the images."""
    monkeypatch.setenv("ALIQUOT_NATIVE_DIR", str(parts))
    name = f"old-{uuid.uuid4().hex[:8]}"
    kubelet_node.control_plane.make_namespace(name)
    with_images(kubelet_node)
    with running(kubelet_node, name) as scene:
        yield scene
        kubelet_node.control_plane.remove_namespace(name)


def test_images_with_an_older_c_library_compute(released: Scene):
    """glibc 2.31, which has libdl and libpthread apart from libc, in Debian's folders and in Red Hat's; and today's."""
    mib = start(released, "old", OLD_KINDS)

    assert "Succeeded" == end_of(released, "old")
    for name, kind in OLD_KINDS.items():
        seen = released.told("old", name)
        if not kind.folder:
            assert {"bystander": 42} == seen
            continue
        assert right(released, kind, mib[name], seen), (name, seen)
        assert ("2.31" if kind.root.endswith("-old") else "2.36") == seen["glibc"]
