"""The webhook over HTTP: bodies that are not an AdmissionReview, and the configuration that leads to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from aliquot.scheduler.settings import SchedulerSettings
from aliquot.scheduler.webhook.admission import Admission
from aliquot.scheduler.webhook.configuration import configurations
from aliquot.scheduler.webhook.server import MAX_BYTES, Webhook

NOBODY: Any = None


@pytest.fixture
def client() -> TestClient:
    """A client of the routes, without TLS."""
    return TestClient(Webhook(NOBODY, SchedulerSettings(), Admission(), lambda: True).app())


def test_a_good_review_is_answered_after_bad_ones(client: TestClient):
    """Too large is 413, cut off or of another kind 400 with one sentence; the server goes on."""
    assert 413 == client.post("/mutate", content=b"x" * (MAX_BYTES + 1)).status_code
    for body in (b"", b"{", b"[]", b'{"request": {"uid": "1"}}', b"\xff\xfe"):
        refused = client.post("/validate", content=body)
        assert 400 == refused.status_code and "not an AdmissionReview" in refused.json()["error"]
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
    review = {"request": {"uid": "1", "kind": {"kind": "Pod"}, "object": pod}}

    assert client.post("/mutate", content=json.dumps(review)).json()["response"] == {"uid": "1", "allowed": True}
    assert [200, 405, 404] == [client.get(path).status_code for path in ("/readyz", "/mutate", "/other")]


def test_the_certificate_is_for_the_names_of_the_service():
    """As the API server spells them."""
    names = SchedulerSettings(namespace="gpu", webhook_service="hook", webhook_name=("10.0.0.1",)).webhook_names

    assert ("hook.gpu.svc", "hook.gpu.svc.cluster.local", "10.0.0.1") == names


def test_pods_of_the_stock_plugin_are_not_sent_where_it_has_the_gpus():
    """Beside the stock plugin a plain nvidia.com/gpu is not Aliquot's; HAMi's words beside it are."""
    beside = configurations("gpu", whole=False, failure_policy="Ignore")[0]["webhooks"][0]
    own = configurations("gpu")[0]["webhooks"][0]
    condition = beside["matchConditions"][0]["expression"]

    assert ("Ignore", "Fail") == (beside["failurePolicy"], own["failurePolicy"])
    assert "'nvidia.com/gpu', 'nvidia.com/gpucores'" not in condition
    assert "'nvidia.com/use-gputype'" in condition
    assert "'nvidia.com/gpu', 'nvidia.com/gpucores'" in own["matchConditions"][0]["expression"]


def test_the_configuration_spares_the_rest_of_the_cluster():
    """Every webhook has conditions or kinds of its own, fails closed, and leaves the system's namespaces alone."""
    hooks = [hook for made in configurations("gpu", "hook", port=8443) for hook in made["webhooks"]]

    assert {"Fail"} == {hook["failurePolicy"] for hook in hooks}
    assert {("gpu", "hook", 8443)} == {
        tuple(hook["clientConfig"]["service"][key] for key in ("namespace", "name", "port")) for hook in hooks
    }
    for hook in hooks:
        (rule,) = hook["rules"]
        assert rule["resources"] != ["pods"] or hook["matchConditions"]
        excluded = [e["values"] for e in hook["namespaceSelector"]["matchExpressions"] if "kubernetes.io" in e["key"]]
        assert ["kube-system" in values for values in excluded] == [True]
