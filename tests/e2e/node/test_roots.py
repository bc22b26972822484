"""Containers of many kinds of roots on the real node: all start, and those that have CUDA programs compute."""

import pytest
from cluster.kubelet_node import KubeletNode
from container_kinds import DEBIAN, EMPTY, REDHAT, Kind, end_of, right, start, with_images
from node_scene import Scene

KINDS = {
    "debian": Kind("debian", ["/client"], DEBIAN),
    "debian-empty-environment": Kind("debian", EMPTY, DEBIAN),
    "debian-new-cache": Kind("debian", ["/bin/sh", "-c", "/usr/sbin/ldconfig && exec /client"], DEBIAN),
    "debian-library-path": Kind("debian-cuda", ["/client"], "/usr/local/nvidia/lib64"),
    "debian-own-driver": Kind("own-driver", ["/client"], DEBIAN),
    "redhat": Kind("redhat", ["/client"], REDHAT),
    "redhat-no-cache": Kind("redhat-bare", EMPTY, REDHAT),
    "musl": Kind("musl", ["/client"]),
    "static": Kind("static", ["/busybox", "echo", '{"bystander": 42}']),
}


@pytest.fixture(scope="module")
def node(kubelet_node: KubeletNode) -> KubeletNode:
    """The node, with an image of every kind."""
    return with_images(kubelet_node)


def test_images_of_every_kind_start_and_their_cuda_programs_compute(node: KubeletNode, scene: Scene):
    """With and without a library path, with an empty environment, with a cache that knows nothing of us, a new one or
    none, in Debian's folders or Red Hat's: the loader comes to our library, and programs without CUDA see nothing."""
    mib = start(scene, "roots", KINDS)

    assert "Succeeded" == end_of(scene, "roots")
    for name, kind in KINDS.items():
        seen = scene.told("roots", name)
        if kind.folder:
            assert right(scene, kind, mib[name], seen), (name, seen)
        else:
            assert {"bystander": 42} == seen, name


@pytest.mark.slow
def test_a_libcuda_of_the_image_in_a_folder_that_its_cache_names_is_not_covered(node: KubeletNode, scene: Scene):
    """What is not held: no file of ours lies there, and no hook rewrites the image's cache. It loads its own, which no
    real driver is behind."""
    start(scene, "own", {"main": Kind("own-elsewhere", ["/client"])})

    assert {"failed": "cuInit", "status": 998} == scene.told("own")
