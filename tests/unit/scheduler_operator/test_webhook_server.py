"""The webhook over HTTP: bodies that are not an AdmissionReview, and the configuration that leads to it."""

import asyncio
import contextlib
import datetime
import json
import os
import signal
import ssl
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.testclient import TestClient

from aliquot.scheduler.admission import server
from aliquot.scheduler.admission.certificates import CertificateBundle, next_step
from aliquot.scheduler.admission.rules import Admission, AdmissionAnswer
from aliquot.scheduler.admission.server import SMALL_BYTES, Webhook, application
from aliquot.scheduler.settings import SchedulerSettings

sys.path.append(str(Path(__file__).resolve().parents[3] / "tools"))
from webhook_config import configurations

NO_API: Any = None


@pytest.fixture
def client() -> TestClient:
    """A client of the routes, without TLS."""
    return TestClient(application(Admission()))


def test_a_good_review_is_answered_after_bad_ones(client: TestClient):
    """Cut off or of another kind is 400 with one sentence; the server goes on."""
    for body in (b"", b"{", b"[]", b'{"request": {"uid": "1"}}', b"\xff\xfe"):
        refused = client.post("/validate", content=body)
        assert 400 == refused.status_code and "not an AdmissionReview" in refused.json()["error"]
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
    review = {"request": {"uid": "1", "kind": {"kind": "Pod"}, "object": pod}}

    assert client.post("/mutate", content=json.dumps(review)).json()["response"] == {"uid": "1", "allowed": True}
    assert [200, 405, 404] == [client.get(path).status_code for path in ("/readyz", "/mutate", "/other")]


class Scene:
    """A webhook whose reviews of objects called `held` take until `may` is set; `judged` are the others, in order."""

    def __init__(self) -> None:
        self.may, self.judged = threading.Event(), list[str]()
        app = application(
            cast("Admission", SimpleNamespace(mutate=self.mutate, validate=self.mutate, claim=self.mutate))
        )
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://webhook")

    def mutate(self, request: dict[str, Any]) -> AdmissionAnswer:
        name = request["object"]["metadata"]["name"]
        if name == "held":
            assert self.may.wait(30)
        self.judged.append(name)
        return AdmissionAnswer()

    def post(self, name: str, size: int) -> asyncio.Task[httpx.Response]:
        """Send a review of an object of this name with so many bytes more."""
        document = {"metadata": {"name": name}, "spec": {"command": "x" * size}}
        return asyncio.ensure_future(self.http.post("/mutate", json={"request": {"uid": "1", "object": document}}))


async def test_small_reviews_wait_for_no_large_one():
    """A small review is answered while a large one is being judged; of those that wait the smallest comes next."""
    webhook = Scene()
    large = [webhook.post(*each) for each in (("held", 4 << 20), ("large", 4 << 20), ("medium", SMALL_BYTES))]
    small = await webhook.post("small", 0)
    gone = webhook.post("gone", SMALL_BYTES)
    await webhook.post("second", 0)
    gone.cancel()
    webhook.may.set()

    assert [200] * 4 == [answer.status_code for answer in (small, *await asyncio.gather(*large))]
    assert ["small", "second", "held", "medium", "large"] == webhook.judged


async def test_a_large_review_that_is_given_up_leaves_its_turn():
    """The next one is judged after it, not beside it."""
    webhook = Scene()
    held, later = webhook.post("held", SMALL_BYTES), webhook.post("later", SMALL_BYTES)
    await webhook.post("small", 0)
    held.cancel()
    await webhook.post("second", 0)
    webhook.may.set()
    await later

    assert ["small", "second", "held", "later"] == webhook.judged


NAMES = ("aliquot-webhook.kube-system.svc",)


class Reviewer:
    """A webhook in its process, and what it answers to reviews."""

    def __init__(self, usage: dict[str, tuple[int, int]] | None = None) -> None:
        self.urls: asyncio.Queue[str] = asyncio.Queue()
        settings = SchedulerSettings(webhook="127.0.0.1:0")
        self.webhook = Webhook(NO_API, settings, lambda _: usage or {}, lambda: True, self.urls.put_nowait)
        self.kept = self.renewed()

    def renewed(self) -> CertificateBundle:
        """A certificate of a new authority, in use from now on."""
        self.kept = next_step(None, b"", NAMES, datetime.datetime.now(datetime.UTC))
        self.webhook.renew(self.kept)
        return self.kept

    async def post(self, url: str, path: str, request: dict[str, Any]) -> dict[str, Any]:
        """The response to a review."""
        trust = ssl.create_default_context(cadata=self.kept.bundle.decode())
        trust.check_hostname = False
        async with httpx.AsyncClient(verify=trust) as http:
            answer = await http.post(f"{url}{path}", json={"request": {"uid": "1", **request}}, timeout=30)
        found: dict[str, Any] = answer.json()["response"]
        return found


@asynccontextmanager
async def reviewing(usage: dict[str, tuple[int, int]] | None = None) -> AsyncIterator[Reviewer]:
    """While the process runs; afterwards it has ended."""
    reviewer = Reviewer(usage)
    task = asyncio.create_task(reviewer.webhook.serve())
    try:
        yield reviewer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        process = reviewer.webhook.process
        assert process is not None and process.returncode == 0


POD = {"kind": {"kind": "Pod"}, "object": {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}}


async def test_a_webhook_whose_process_ends_is_started_again():
    """Reviews are answered in another process than the scheduler's; when it is killed, the next one has the port."""
    async with reviewing() as reviewer:
        before, url = reviewer.webhook.answers(), await reviewer.urls.get()
        assert (False, True) == (before, reviewer.webhook.answers())
        first = await reviewer.post(url, "/mutate", POD)
        process = reviewer.webhook.process
        assert process is not None and process.pid != os.getpid()
        process.kill()
        await process.wait()
        while reviewer.webhook.answers():
            await asyncio.sleep(0.01)
        again, second = await reviewer.urls.get(), await reviewer.post(url, "/mutate", POD)

    assert not reviewer.webhook.answers()
    assert {"uid": "1", "allowed": True} == first == second
    assert url == again


async def test_a_webhook_whose_process_hangs_is_started_again(monkeypatch: pytest.MonkeyPatch):
    """One that is stopped gives no sign of life; another takes its place and answers what has waited."""
    monkeypatch.setattr(server, "SILENT_S", 2.0)
    async with reviewing() as reviewer:
        url = await reviewer.urls.get()
        first = reviewer.webhook.process
        assert first is not None
        os.kill(first.pid, signal.SIGSTOP)
        answer = await reviewer.post(url, "/mutate", POD)
        assert reviewer.webhook.process is not first and answer["allowed"] is True


async def test_the_process_knows_what_a_namespace_holds():
    """A quota below what its namespace holds is refused, by the ledger of the scheduler."""
    quota = {"metadata": {"name": "q"}, "spec": {"limits": [{"model": "V100", "gpus": "0.5"}]}}
    request = {"kind": {"kind": "GPUQuota"}, "namespace": "team", "object": quota}
    async with reviewing({"V100": (750, 1024)}) as reviewer:
        answer = await reviewer.post(await reviewer.urls.get(), "/validate", request)

    assert "0.75" in answer["status"]["message"]


async def test_a_renewed_certificate_is_shown_by_the_running_process():
    """Connections that begin after a renewal see the new certificate; nothing is started again for it."""
    async with reviewing() as reviewer:
        url = await reviewer.urls.get()
        process, answer = reviewer.webhook.process, None
        reviewer.renewed()
        while answer is None:
            with contextlib.suppress(httpx.ConnectError):  # it reads the new one at its next turn
                answer = await reviewer.post(url, "/mutate", POD)
        assert answer == {"uid": "1", "allowed": True} and reviewer.webhook.process is process


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
    """Every webhook has conditions or kinds of its own and leaves the system's namespaces alone.

    All fail closed but the one that shares do not need.
    """
    hooks = [hook for made in configurations("gpu", "hook", port=8443) for hook in made["webhooks"]]

    assert ["others.pods.aliquot.dev"] == [hook["name"] for hook in hooks if hook["failurePolicy"] != "Fail"]
    assert ["pods", "pods/status", "resourceclaims"] == next(h for h in hooks if h["name"] == "plans.aliquot.dev")[
        "rules"
    ][0]["resources"]
    assert {("gpu", "hook", 8443)} == {
        tuple(hook["clientConfig"]["service"][key] for key in ("namespace", "name", "port")) for hook in hooks
    }
    for hook in hooks:
        (rule,) = hook["rules"]
        assert rule["resources"] != ["pods"] or hook["matchConditions"]
        excluded = [e["values"] for e in hook["namespaceSelector"]["matchExpressions"] if "kubernetes.io" in e["key"]]
        assert ["kube-system" in values for values in excluded] == [True]
