"""While no webhook answers, the API server stops pods that Aliquot serves and no others."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.api import ApiError
from cluster.control_plane import ControlPlane
from cluster.ours import HOLDERS
from webhook_config import configurations

NOWHERE = "https://127.0.0.1:9"


@pytest.fixture(params=["own", "coexist"])
def mode(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """The webhooks of a cluster whose Aliquot has gone, by who has the GPUs."""
    for made in configurations(HOLDERS, url=NOWHERE, whole=request.param == "own"):
        control_plane.kubectl("apply", "-f", "-", input_=json.dumps(made))
    yield request.param
    control_plane.kubectl("delete", "mutatingwebhookconfiguration,validatingwebhookconfiguration", "aliquot")


def asking(name: str, limits: dict[str, Any], **meta: Any) -> dict[str, Any]:
    """A pod with these limits and metadata, for no scheduler."""
    container = {"name": "main", "image": "i", "resources": {"limits": limits}}
    return {"metadata": {"name": name, **meta}, "spec": {"schedulerName": "nobody", "containers": [container]}}


FOREIGN = {
    "plain": asking("plain", {"cpu": "1m"}),
    "mig": asking("mig", {"nvidia.com/mig-1g.5gb": 1}),
    "time-slicing": asking("time-slicing", {"nvidia.com/gpu.shared": 1}),
    "hami-of-another-vendor": asking(
        "vendor", {"huawei.com/ascend910": 1}, annotations={"hami.io/node-scheduler-policy": "spread"}
    ),
    "kubeshare-without-a-share": asking("group", {}, labels={"sharedgpu/group_name": "g"}),
    "holder": asking("holder", {"cpu": "1m"}, labels={"aliquot.dev/vgpu": "v"}),
}
SERVED = {
    "aliquot": asking("aliquot", {"aliquot.dev/gpu-percent": 10}),
    "misspelt": asking("misspelt", {}, annotations={"aliquot.dev/gpu-requst": "0.5"}),
    "tencent": asking("tencent", {"tencent.com/vcuda-core": 10}),
    "aliyun": asking("aliyun", {"aliyun.com/gpu-mem": 1}),
    "hami": asking("hami", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}),
    "hami-by-annotation": asking("noted", {"nvidia.com/gpu": 1}, annotations={"nvidia.com/use-gputype": "V100"}),
    "kubeshare1": asking("kubeshare1", {}, annotations={"kubeshare/gpu_request": "0.5"}),
    "kubeshare2": asking("kubeshare2", {}, labels={"sharedgpu/gpu_limit": "1.0"}),
}
STOCK = {"stock": asking("stock", {"nvidia.com/gpu": 1})}


def admitted(plane: ControlPlane, namespace: str, pods: dict[str, dict[str, Any]]) -> set[str]:
    """Which of these pods the API server would take."""
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    found = set()
    for name, pod in pods.items():
        try:
            plane.api.create(path, pod)
        except ApiError as error:
            assert "failed calling webhook" in str(error)
        else:
            found.add(name)
    return found


def test_an_aliquot_that_is_away_stops_the_pods_it_serves_and_no_others(
    control_plane: ControlPlane, namespace: str, mode: str
):
    """Pods of other plugins and vendors are created, and those of the stock plugin where it has the GPUs."""
    ours = set(STOCK) if mode == "own" else set()

    assert set(FOREIGN) | set(STOCK) - ours == admitted(control_plane, namespace, FOREIGN | STOCK)
    assert set() == admitted(control_plane, namespace, SERVED)
