"""The configuration by which the stock kube-scheduler calls the extender."""

from __future__ import annotations

from typing import Any, Final

from aliquot.kube import names
from aliquot.kube.sharepods import PROFILE

BALANCERS: Final = ("NodeResourcesFit", "NodeResourcesBalancedAllocation", "ImageLocality")
"""Score plugins that spread pods by what GPUs do not depend on."""

WEIGHT: Final = 10
"""One step of our score is 100 points: more than the plugins that are left give by chance, less than the 200 of a node
affinity that the user wrote (for such pods nodes that fit differ by one step at most)."""


def kube_scheduler_config(url: str, *, ca_file: str = "") -> dict[str, Any]:
    """The configuration for an extender at `url`; over https with `ca_file`, the CA that signed its certificate.

    Two profiles: the default one places GPU pods among the others, `aliquot-scheduler` lets the placement policy alone
    choose among nodes that the user's own preferences leave equal. All nodes are looked at (percentageOfNodesToScore
    100), because a sample may miss the only node with the right GPU.
    """
    secure = url.startswith("https://")
    extender: dict[str, Any] = {
        "urlPrefix": url.rstrip("/"),
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": WEIGHT,
        "enableHTTPS": secure,
        "httpTimeout": "5s",
        "nodeCacheCapable": True,
        "ignorable": False,
        "managedResources": [{"name": name, "ignoredByScheduler": False} for name in names.RESOURCES],
    }
    if secure and ca_file:
        extender["tlsConfig"] = {"caFile": ca_file}
    quiet = {"score": {"disabled": [{"name": name} for name in BALANCERS]}}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": 100,
        "profiles": [{"schedulerName": "default-scheduler"}, {"schedulerName": PROFILE, "plugins": quiet}],
        "extenders": [extender],
    }
