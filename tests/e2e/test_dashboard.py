"""The dashboard of a cluster: a real scheduler program and API server, two hundred nodes, pods that come and wait,
viewers with rights of their own, and what a node's agent measures."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from accounts import allow, token_of
from agent_pods import agent
from cluster.control_plane import ControlPlane
from looking import browser
from scheduling import ROOT, OurScheduler, Pods, asking, devices_of, eventually, gpu_pod, percent, slices_of

from aliquot.status.nodes import NodeGpu, NodeReport, Owner, Use
from aliquot.status.tenants import TenantStatus

WEB_PORT = 8771
NODES = 200
HOME = "aliquot-pages"


class Pages:
    """The dashboard, asked from outside the cluster's network."""

    def __init__(self, plane: ControlPlane, token: str, scheduler: OurScheduler, port: int = WEB_PORT) -> None:
        self._plane = plane
        self._port = port
        self.token = token
        self.scheduler = scheduler

    def ask(self, path: str, method: str = "GET", body: str = "", **headers: str) -> tuple[int, bytes, str]:
        """Status, body and cookie of an answer, asked with these headers alone."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        connection.sock = self._plane.rooms.connect(self._port)
        connection.request(method, path, body or None, {"Host": "localhost", **headers})
        answer = connection.getresponse()
        try:
            return answer.status, answer.read(), answer.headers.get("set-cookie", "")
        finally:
            connection.close()

    def get(self, path: str, host: str = "localhost", token: str | None = None) -> tuple[int, bytes]:
        """Status and body of an answer for a token, the administrator's unless another is given."""
        return self.ask(path, Host=host, Authorization=f"Bearer {self.token if token is None else token}")[:2]

    def facts(self, path: str, token: str | None = None) -> Any:
        """An answer of the API."""
        status, body = self.get(f"/api/v1/{path}", token=token)
        assert 200 == status, body
        return json.loads(body)

    def names(self, token: str) -> set[str]:
        """The namespaces of which somebody sees names, on GPUs and among workloads."""
        tenants = [share["tenant"] for gpu in self.facts("gpus", token)["items"] for share in gpu["shares"]]
        names = tenants + [workload["name"] for workload in self.facts("workloads", token)["items"]]
        return {name.partition("/")[0] for name in names if "/" in name}


@pytest.fixture(scope="module")
def pages(control_plane: ControlPlane) -> Iterator[Pages]:
    """A scheduler with its dashboard, over two hundred nodes with eight V100 each."""
    control_plane.fake_nodes(NODES, "v100", prefix="web")
    control_plane.make_namespace(HOME)
    flags = ("--web", f"127.0.0.1:{WEB_PORT}", "--web-host", "gpus.example", "--web-access", "token")
    with asking(OurScheduler(control_plane, 8770, "--namespace", HOME, *flags)) as ours:
        token = token_of(control_plane, HOME, "admin")
        allow(control_plane, HOME, "admin", "pods")
        shown = Pages(control_plane, token, ours)
        eventually(lambda: shown.facts("totals")["gpus"] == 8 * NODES, "the dashboard does not show every GPU")
        yield shown


def test_every_gpu_of_the_cluster_is_there(pages: Pages, control_plane: ControlPlane):
    """The API has the GPUs that the nodes announce, and the first page a bounded number of them."""
    status, body = pages.get("/")

    assert set(devices_of(control_plane)) == {gpu["uuid"] for gpu in pages.facts("gpus")["items"]}
    assert 200 == status and len(body) < 150_000


def test_a_pod_is_shown_where_it_was_bound(pages: Pages, pods: Pods):
    """A pod that gets a part of a GPU stands on that GPU with its request, and leaves it again."""
    pods.create(gpu_pod("a", percent(30, "4Gi")))
    (pod,) = pods.wait_bound(1)
    ((uuid, milli, mib),) = slices_of(pod)

    def shares() -> list[tuple[int, int]]:
        gpu = next(gpu for gpu in pages.facts("gpus")["items"] if gpu["uuid"] == uuid)
        mine = [share for share in gpu["shares"] if share["tenant"].startswith(f"{pods.namespace}/a")]
        return [(share["request_milli"], share["memory_mib"]) for share in mine]

    eventually(lambda: shares() == [(milli, mib)], "the GPU does not show the pod")
    pods.delete("a")
    eventually(lambda: shares() == [], "the GPU still shows the pod")


def test_a_pod_that_waits_says_why(pages: Pages, pods: Pods):
    """A pod that asks for more than any node has waits on the page, with its reason by groups of nodes."""
    pods.create(gpu_pod("huge", percent(900)))
    name = f"{pods.namespace}/huge"
    eventually(lambda: name in [w["name"] for w in pages.facts("workloads?state=Pending")["items"]], "it is not shown")
    why = pages.facts(f"workloads/{name}/explain")

    assert [f"{NODES} nodes"] == [reason["where"] for reason in why["reasons"]]
    assert why["reasons"][0]["lasting"]


def test_try_it_says_what_would_be_bound(pages: Pages, pods: Pods):
    """A dry run names a GPU that a pod with that request then gets."""
    trial = pages.facts("try?request=0.4&memory=2Gi")
    pods.create(gpu_pod("b", percent(40, "2Gi")))
    (pod,) = pods.wait_bound(1)

    assert trial["fits"] and trial["pieces"][0]["node"] == pod["spec"]["nodeName"]
    assert [piece["uuid"] for piece in trial["pieces"]] == [uuid for uuid, _, _ in slices_of(pod)]


def test_each_account_sees_what_it_may_list(pages: Pages, control_plane: ControlPlane, namespace: str):
    """One account lists the pods of a namespace and sees their names; another lists nodes and sees no name at all."""
    other = f"{namespace}-b"
    control_plane.make_namespace(other)
    for name in (namespace, other):
        pods = Pods(control_plane, name)
        pods.create(gpu_pod("p", percent(20)))
        pods.wait_bound(1)
    team, nodes, nobody = (token_of(control_plane, namespace, name) for name in ("team", "nodes", "nobody"))
    allow(control_plane, namespace, "team", "pods", within=namespace)
    allow(control_plane, namespace, "nodes", "nodes")
    eventually(lambda: {namespace, other} <= pages.names(pages.token), "the administrator does not see both")

    assert {namespace} == pages.names(team)
    assert set() == pages.names(nodes)
    assert 8 * NODES == pages.facts("totals", nodes)["gpus"] == pages.facts("totals", team)["gpus"]
    assert 404 == pages.get(f"/api/v1/workloads/{other}/p/explain", token=team)[0]
    assert 403 == pages.get("/", token=nobody)[0]
    assert [401, 401] == [pages.get("/", token="guess")[0], pages.ask("/")[0]]
    control_plane.remove_namespace(other)
    log = pages.scheduler.part.tail(100_000)
    assert not [token for token in (team, nodes, nobody, pages.token) if token in log]


def test_a_session_holds_at_every_replica(pages: Pages, control_plane: ControlPlane, namespace: str):
    """Who signed in at one replica is known at another, which stands by, and still is after a restart of it."""
    token = token_of(control_plane, namespace, "viewer")
    allow(control_plane, namespace, "viewer", "nodes")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    word = pages.ask("/signin", "POST", f"token={token}", **form)[2].partition(";")[0]
    flags = ("--namespace", HOME, "--web", f"127.0.0.1:{WEB_PORT + 2}", "--web-access", "token")
    standby = OurScheduler(control_plane, 8772, *flags)
    there = Pages(control_plane, token, standby, WEB_PORT + 2)
    for _ in range(2):
        standby.part.launch()
        try:
            eventually(lambda: control_plane.answers(8772, "/readyz"), "the standby is not ready")
            eventually(lambda: control_plane.answers(WEB_PORT + 2, "/signin"), "the standby has no pages")
            assert (200, 401) == (there.ask("/", Cookie=word)[0], there.ask("/", Cookie=f"{word}x")[0])
        finally:
            standby.part.stop()


def test_what_an_agent_measures_is_shown(pages: Pages, pods: Pods):
    """The use of a pod comes from its node's agent; of nodes without one nothing is said, and the page says so."""
    pods.create(gpu_pod("m", percent(30, "4Gi")))
    (pod,) = pods.wait_bound(1)
    ((uuid, _, _),), node = slices_of(pod), pod["spec"]["nodeName"]
    status = TenantStatus("m", 300, 1000, 0.25, 0, 2048, 4096, 0, 7.0, 0.0, 100.0, 0, 1, False)
    use = Use(Owner(pods.namespace, "m", "c0"), status)
    gpu = NodeGpu(uuid=uuid, model="V100", memory_mib=16384, busy=0.25, uses=(use,))
    told = NodeReport(node=node, driver="550", gpus=(gpu,), window_ms=10_000, now_ns=1)

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = next(gpu for gpu in pages.facts("gpus")["items"] if gpu["uuid"] == uuid)
        return found

    assert not shown()["measured"]
    with agent(pods.plane, HOME, node, told):
        eventually(lambda: bool(shown()["measured"]), "what the agent measures is not shown")
        share = next(share for share in shown()["shares"] if share["tenant"] == f"{pods.namespace}/m/c0")
        silent = {each["name"]: each["silent"] for each in pages.facts("nodes")["items"]}
        page = pages.get(f"/gpus/{uuid}")[1].decode()

    assert (250, 2048, 7.0) == (share["usage_milli"], share["memory_used_mib"], share["wait_ms"])
    assert "" == silent.pop(node) and {"no agent is known on the node"} == set(silent.values())
    assert "0.25" in page
    assert b"use not known" in pages.get("/gpus?sort=name")[1]


def test_a_browser_signs_in_and_sees_the_cluster_live(pages: Pages, pods: Pods):
    """In a real browser: the form, numbers that are the API's, a pod as it comes, no error, no foreign host."""
    faults: list[str] = []
    with pods.plane.exposed(WEB_PORT) as url, browser() as chromium:
        page = chromium.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.on("console", lambda said: said.type in ("error", "warning") and faults.append(said.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith(url) or faults.append(asked.url))
        page.goto(f"{url}/signin")
        page.get_by_label("Token").fill(pages.token)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{url}/")
        page.locator("#live-state", has_text="live").wait_for(timeout=10_000)
        tiles = page.locator("#summary").inner_text()
        page.goto(f"{url}/workloads")
        page.locator("#live-state", has_text="live").wait_for(timeout=10_000)
        pods.create(gpu_pod("seen", percent(10)))
        pods.wait_bound(1)
        page.locator("#blocks", has_text=f"{pods.namespace}/seen").wait_for(timeout=30_000)
        checks = page.evaluate((ROOT / "tests" / "e2e_web" / "checks.js").read_text())
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Token").wait_for()
        page.goto("about:blank")

    assert f"{8 * NODES:,}" in tiles and "not known" in tiles
    assert [] == faults and [] == checks
