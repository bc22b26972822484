"""What is made of drivers that answer in part."""

import sys
from types import SimpleNamespace

import pytest

from aliquot.driver.discovery import HalfKnown, nvml_places, topology_of


class FakeNvml(SimpleNamespace):
    """pynvml with two GPUs; `answers` are the functions that work, every other one raises as an old driver does."""

    class NVMLError(Exception):
        pass

    NVML_NVLINK_MAX_LINKS = 4
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0
    NVML_AFFINITY_SCOPE_NODE = 0

    def nvmlDeviceGetPciInfo(self, handle):  # noqa: N802  pynvml's own name
        return SimpleNamespace(domain=0, bus=handle, device=0)

    def __getattr__(self, name):
        def refuse(*_):
            raise self.NVMLError(name)

        return refuse


@pytest.fixture
def nvml(monkeypatch):
    """Puts a fake in pynvml's place."""

    def install(**answers):
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(**answers))
        return nvml_places([1, 2])

    return install


def test_a_driver_that_answers_nothing_leaves_gpus_far_apart(nvml):
    """Without any answer a pair is SYS and nothing is known of nodes and cores."""
    places = nvml()

    assert [["X", "SYS"], ["SYS", "X"]] == [place.links for place in places]
    assert [(None, []), (None, [])] == [(place.numa, place.cores) for place in places]


def test_links_are_counted_by_the_address_at_their_other_end(nvml):
    """Three active links to the other GPU are NV3; a link that is down does not count."""
    places = nvml(
        nvmlDeviceGetNvLinkState=lambda handle, link: int(link < 3),
        nvmlDeviceGetNvLinkRemotePciInfo=lambda handle, link: SimpleNamespace(domain=0, bus=3 - handle, device=0),
    )

    assert ["X", "NV3"] == places[0].links


def test_links_to_a_switch_join_only_gpus_that_may_talk(nvml):
    """Two GPUs on NVSwitches are joined unless the driver says that NVLink does not work between them."""
    switched = {
        "nvmlDeviceGetNvLinkState": lambda handle, link: 1,
        "nvmlDeviceGetNvLinkRemoteDeviceType": lambda handle, link: 2,
        "nvmlDeviceGetTopologyCommonAncestor": lambda a, b: 40,
    }
    assert "NV4" == nvml(**switched)[0].links[1]
    assert "NODE" == nvml(**switched, nvmlDeviceGetP2PStatus=lambda a, b, what: 5)[0].links[1]


def test_a_link_that_one_end_reports_counts_for_both(nvml):
    """When one GPU's query fails, the pair is what the other end says."""
    places = nvml(
        nvmlDeviceGetNvLinkState=lambda handle, link: int(handle == 1 and link < 2),
        nvmlDeviceGetNvLinkRemotePciInfo=lambda handle, link: SimpleNamespace(domain=0, bus=3 - handle, device=0),
    )

    assert [["X", "NV2"], ["NV2", "X"]] == [place.links for place in places]


def test_one_bit_is_a_node_and_several_are_none(nvml):
    """A GPU near exactly one memory node is on it; cores are the set bits over all words."""
    places = nvml(
        nvmlDeviceGetMemoryAffinity=lambda handle, words, scope: [0b10 if handle == 1 else 0b11],
        nvmlDeviceGetCpuAffinity=lambda handle, words: [0b101, 1] + [0] * (words - 2),
    )

    assert [1, None] == [place.numa for place in places]
    assert [0, 2, 64] == places[0].cores


def test_gpus_whose_links_nobody_asked_for_are_far_apart():
    """An older list of GPUs, without links, still is a machine."""
    assert "SYS" == topology_of([[], []], [None, None], [[], []]).links[0][1]


def test_half_a_list_is_refused():
    """Links of some GPUs only are no topology."""
    with pytest.raises(HalfKnown, match="the links of 1 of 2 GPUs"):
        topology_of([["X", "SYS"], []], [None, None], [[], []])
