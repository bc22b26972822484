"""The extender when parts fail: two schedulers, a lost API server, forgotten history, cut watches, https."""

import http.client
import json
import ssl
import time
from collections.abc import Iterator

import pytest
from cluster.control_plane import ControlPlane
from cluster.pki import Pair
from scheduling import OurScheduler, Pods, asking, eventually, gpu_pod, ledger_of, percent


@pytest.fixture(scope="module", autouse=True)
def nodes(control_plane: ControlPlane) -> None:
    """Two boards of GPUs."""
    control_plane.fake_nodes(2, "v100", prefix="faults")


@pytest.fixture
def scheduler(control_plane: ControlPlane) -> Iterator[OurScheduler]:
    """Our scheduler, asked by kube-scheduler."""
    with asking(OurScheduler(control_plane)) as ours:
        yield ours


def test_of_two_schedulers_one_leads_and_the_other_takes_over(pods: Pods, scheduler: OurScheduler):
    """Both are ready, the Service leads to the leader. One that hangs is replaced after its lease; awake again it binds
    nothing and sends away who asks, and the Service stays with the new one."""
    service = {"metadata": {"name": "lead"}, "spec": {"ports": [{"name": "extender", "port": 8770}]}}
    pods.plane.api.create("/api/v1/namespaces/kube-system/services", service)
    scheduler.part.stop()
    first, second = (
        OurScheduler(pods.plane, port, "--leader-service", "lead", "--leader-address", address)
        for port, address in ((8770, "10.124.0.1"), (8771, "10.124.0.2"))
    )
    first.part.start()
    second.part.launch()
    try:
        pods.create(*(gpu_pod(f"a{i}", percent(30)) for i in range(10)))
        pods.wait_bound(10)
        eventually(lambda: pods.plane.answers(8771, "/readyz"), "the standby is not ready")
        eventually(lambda: [("10.124.0.1", 8770)] == led_to(pods.plane), "nobody is led to the leader")
        assert not pods.plane.answers(8771, "/leadz")
        assert ledger_of(first) == ledger_of(second)
        assert "does not lead" in refusal(second, a_bind(pods, "by-hand"))

        first.part.pause()
        eventually(lambda: pods.plane.answers(8771, "/leadz"), "the second does not take over", 40)
        eventually(lambda: [("10.124.0.2", 8771)] == led_to(pods.plane), "nobody is led to the new leader")
        second.configure()
        pods.create(*(gpu_pod(f"b{i}", percent(30)) for i in range(10)))
        first.part.resume()
        pods.wait_bound(20)
        assert "does not lead" in refusal(first, a_bind(pods, "by-hand-too"))
        assert pods.plane.answers(8770, "/readyz")
        assert [("10.124.0.2", 8771)] == led_to(pods.plane)
        pods.agree(second)
        pods.agree(first)
    finally:
        second.part.stop()
        first.part.stop()
        pods.plane.api.delete("/api/v1/namespaces/kube-system/services/lead")


def led_to(plane: ControlPlane) -> list[tuple[str, int]]:
    """Addresses and ports behind the Service."""
    path = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"
    found = plane.api.get(f"{path}?labelSelector=kubernetes.io%2Fservice-name%3Dlead")["items"]
    return [(e["addresses"][0], part["ports"][0]["port"]) for part in found for e in part["endpoints"]]


def refusal(scheduler: OurScheduler, bind: dict[str, str]) -> str:
    """Why a bind is refused."""
    status, answer = scheduler.post("/bind", json.dumps(bind).encode())
    assert 200 == status
    return str(answer["Error"])


def a_bind(pods: Pods, name: str) -> dict[str, str]:
    """What kube-scheduler would ask for a new pod."""
    body = gpu_pod(name, percent(10))
    body["spec"]["schedulerName"] = "nobody"
    pods.create(body)
    uid = pods[name]["metadata"]["uid"]
    node = pods.all()[0]["spec"].get("nodeName") or next(iter(pods.plane.ready_nodes()))
    return {"PodName": name, "PodNamespace": pods.namespace, "PodUID": uid, "Node": node}


def test_a_lost_api_server_delays_and_loses_nothing(pods: Pods, scheduler: OurScheduler):
    """kill -9 of the API server during churn: what waited goes on when it is back, and every promise holds."""
    pods.create(*(gpu_pod(f"a{i}", percent(25)) for i in range(20)))
    time.sleep(0.3)
    pods.plane["kube-apiserver"].kill()
    time.sleep(1)
    pods.plane["kube-apiserver"].start()
    pods.create(*(gpu_pod(f"b{i}", percent(25)) for i in range(20)))
    pods.wait_bound(40, 90)

    pods.agree(scheduler, 60)


def test_lost_events_and_forgotten_history_are_caught_up(pods: Pods, scheduler: OurScheduler):
    """With every watch cut while pods go and history compacted, freed shares are free again in the ledger."""
    pods.create(*(gpu_pod(f"a{i}", percent(50)) for i in range(20)))
    pods.wait_bound(20)
    pods.plane["kube-apiserver"].pause()
    pods.plane["kube-apiserver"].resume()
    pods.plane.cut_watches()
    for i in range(10):
        pods.delete(f"a{i}")
    pods.plane.compact()
    pods.plane.cut_watches()

    pods.agree(scheduler, 60)
    assert 10 == len(pods.all())


def arrivals_kept(plane: ControlPlane) -> int:
    """Arrivals in what the scheduler keeps for the one after it."""
    kept = plane.api.get("/api/v1/namespaces/kube-system/configmaps/aliquot-learned")["data"]["learned.json"]
    return len(json.loads(kept.splitlines()[1])["recent"])


def test_what_was_learned_outlives_the_scheduler(pods: Pods, scheduler: OurScheduler):
    """At its end a scheduler leaves the arrivals it saw in the API server, and the next one adds its own to them."""
    pods.create(*(gpu_pod(f"a{i}", percent(20)) for i in range(4)))
    pods.wait_bound(4)
    scheduler.part.stop()
    kept = arrivals_kept(pods.plane)
    scheduler.part.start()
    pods.create(*(gpu_pod(f"b{i}", percent(20)) for i in range(2)))
    pods.wait_bound(6)
    scheduler.part.stop()

    assert 4 <= kept
    assert kept + 2 == arrivals_kept(pods.plane)


def test_it_speaks_https(pods: Pods):
    """kube-scheduler asks over TLS with the configuration that our own command prints, and pods are bound; a renewed
    certificate is shown without a restart."""
    pair = pods.plane.pki.server("extender", "extender", ["127.0.0.1", "localhost"])
    ours = OurScheduler(pods.plane, 8772, "--tls-cert", str(pair.certificate), "--tls-key", str(pair.key))
    ours.part._ready = lambda: pods.plane.answers(8772, "/leadz", tls=True)
    ours.part.start()
    try:
        ours.configure("https://127.0.0.1:8772", "--ca-file", str(pods.plane.authority))
        pods.create(gpu_pod("a", percent(30)))
        pods.wait_bound(1)
        before = shown(pods.plane, 8772)
        pods.plane.pki.server("extender", "extender", ["127.0.0.1", "localhost"])
        eventually(lambda: shown(pods.plane, 8772) != before, "the old certificate is still shown")
        ours.configure("https://127.0.0.1:8772", "--ca-file", str(pods.plane.authority))  # connects anew
        pods.create(gpu_pod("b", percent(30)))
        pods.wait_bound(2)
    finally:
        ours.part.stop()


def test_with_a_client_authority_only_its_own_are_answered(control_plane: ControlPlane):
    """Who shows no certificate is turned away by the TLS layer, who shows one of that authority is answered."""
    pair = control_plane.pki.server("extender", "extender", ["127.0.0.1"])
    client = control_plane.pki.client("asker", "asker")
    ours = OurScheduler(
        control_plane, 8772, "--tls-cert", str(pair.certificate), "--tls-key", str(pair.key),
        "--client-ca", str(control_plane.authority),
    )  # fmt: skip
    ours.part._ready = lambda: asked(control_plane, 8772, client) == 200
    ours.part.start()
    try:
        assert not control_plane.answers(8772, "/readyz", tls=True)
    finally:
        ours.part.stop()


def trusting(client: Pair | None = None) -> ssl.SSLContext:
    """A context that takes any server, and shows a certificate of its own if it has one."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return context


def shown(plane: ControlPlane, port: int) -> bytes | None:
    """The certificate that a new connection sees."""
    with trusting().wrap_socket(plane.rooms.connect(port, timeout_s=5)) as connection:
        return connection.getpeercert(binary_form=True)


def asked(plane: ControlPlane, port: int, client: Pair) -> int:
    """The status with which `/leadz` is answered to this client; 0 if it is not."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.sock = trusting(client).wrap_socket(plane.rooms.connect(port, timeout_s=5))
        connection.request("GET", "/leadz")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
