"""The client layer against the real API server: watches that are cut, leases, applies, binds and our own kinds."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import yaml
from cluster.control_plane import ControlPlane

from aliquot.kube.api import Api, load_config, open_client
from aliquot.kube.custom import SHAREPODS
from aliquot.kube.errors import AlreadyExists, Conflict, Invalid, NotFound
from aliquot.kube.names import PLAN
from aliquot.kube.objects import NODES, PODS, Binding, Meta, ObjectReference, Pod
from aliquot.kube.plan import ContainerPlan, PodPlan, read_plan, write_plan
from aliquot.kube.reflector import Change, Reflector, Tuning
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Slice

ROOT = Path(__file__).resolve().parents[2]
CRDS = [yaml.safe_load(path.read_text())["metadata"]["name"] for path in (ROOT / "deploy" / "crds").glob("*.yaml")]
POD = {"spec": {"containers": [{"name": "main", "image": "busybox"}], "nodeSelector": {"never": "true"}}}


class Cutter:
    """A relay to the API server that cuts what goes through it."""

    def __init__(self) -> None:
        self.cuts = 0
        self.open: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def cut(self) -> None:
        """Reset every connection, as soon as there is one."""
        while not self.open:
            await asyncio.sleep(0.001)
        self.cuts += 1
        self.reset()

    def reset(self) -> None:
        """Reset every connection there is."""
        for writer in self.open:
            writer.transport.abort()
        self.open.clear()


@asynccontextmanager
async def cutting(url: str) -> AsyncIterator[Cutter]:
    """A relay in front of a server."""
    target = urlsplit(url)
    cutter = Cutter()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(target.hostname, target.port)
        cutter.open |= {writer, back}
        await asyncio.gather(pump(reader, back), pump(there, writer))
        cutter.open -= {writer, back}

    listener = await asyncio.start_server(client, "127.0.0.1", 0)
    cutter.port = listener.sockets[0].getsockname()[1]
    try:
        yield cutter
    finally:
        listener.close()
        cutter.reset()
        await asyncio.sleep(0)


def through(plane: ControlPlane, port: int) -> Api:
    """A client that reaches the API server by way of a relay."""
    config = load_config(str(plane.kubeconfig))
    config.cluster.server = f"https://127.0.0.1:{port}"
    return Api(open_client(config))


async def test_a_store_whose_watches_are_cut_ends_equal_to_the_server(control_plane: ControlPlane, namespace: str):
    """With a cut at every third change, every one ends in the store and each pod's history makes sense."""
    async with Api.connect(str(control_plane.kubeconfig)) as api:
        chance = random.Random(5)
        history: dict[str, list[str]] = {}

        def told(change: Change[Pod]) -> None:
            history.setdefault(change.object.metadata.uid, []).append(change.kind)

        async with cutting(control_plane.url) as cutter, through(control_plane, cutter.port) as cut_api:
            tuning = Tuning(page=7, idle_s=5, wait_first_s=0.01, wait_max_s=0.1)
            store = Reflector(cut_api, PODS, told, namespace=namespace, tuning=tuning)
            following = asyncio.create_task(store.run())
            await store.synced.wait()
            names: list[str] = []
            for step in range(120):
                if chance.random() < 0.55 or not names:
                    names.append(f"p{step}")
                    await api.create(PODS, {**POD, "metadata": {"name": names[-1]}}, namespace=namespace)
                elif chance.random() < 0.5:
                    note = {"metadata": {"annotations": {"step": str(step)}}}
                    await api.patch(PODS, chance.choice(names), note, namespace=namespace)
                else:
                    gone = names.pop(chance.randrange(len(names)))
                    await api.delete(PODS, gone, namespace=namespace, grace_s=0)
                if step % 3 == 0:
                    await cutter.cut()
            await equal(api, store, namespace)
            following.cancel()

        assert 40 == cutter.cuts
        assert set(names) == {pod.metadata.name for pod in store}
        for kinds in history.values():
            assert "added" == kinds[0]
            assert "added" not in kinds[1:]
            assert "deleted" not in kinds[:-1]


async def equal(api: Api, store: Reflector[Pod], namespace: str) -> None:
    """Wait until the store has exactly what the server has, version by version."""
    async with asyncio.timeout(20):
        while True:
            body = json.loads(await api.request("GET", PODS.path(namespace=namespace)))
            there = {p["metadata"]["name"]: p["metadata"]["resourceVersion"] for p in body["items"]}
            if there == {p.metadata.name: p.metadata.resource_version for p in store}:
                return
            await asyncio.sleep(0.05)


async def test_plan_and_node_are_one_write(control_plane: ControlPlane, namespace: str):
    """A Binding with annotations and a uid puts node and plan into the pod together; another uid or a second fails."""
    (node,) = control_plane.fake_nodes(1, "v100", prefix="plan-")

    try:
        async with Api.connect(str(control_plane.kubeconfig)) as api:
            pod = await api.create(PODS, {**POD, "metadata": {"name": "a"}}, namespace=namespace)
            plan = PodPlan(node, {"main": ContainerPlan((Slice(GpuUuid("GPU-1"), 300, 600, 4096),))})
            path = PODS.path(namespace=namespace, name="a", sub="binding")

            async def bind(uid: str) -> None:
                meta = Meta(name="a", namespace=namespace, uid=uid, annotations={PLAN: write_plan(plan)})
                binding = Binding(meta, ObjectReference(kind="Node", name=node))
                await api.request("POST", path, content=msgspec.json.encode(binding), repeat=False)

            with pytest.raises(Conflict):
                await bind("another-uid")
            before = await api.get(PODS, "a", namespace=namespace)
            await bind(pod.metadata.uid)
            after = await api.get(PODS, "a", namespace=namespace)
            with pytest.raises(Conflict):
                await bind(pod.metadata.uid)

            assert ("", None) == (before.spec.node_name, read_plan(before.metadata.annotations))
            assert (node, plan) == (after.spec.node_name, read_plan(after.metadata.annotations))
    finally:
        control_plane.remove_nodes([node])


async def test_each_answer_of_the_server_is_its_own_error(control_plane: ControlPlane, namespace: str):
    """Absent, taken, outdated and impossible are told apart."""
    async with Api.connect(str(control_plane.kubeconfig)) as api:
        await api.create(PODS, {**POD, "metadata": {"name": "a"}}, namespace=namespace)
        assert await api.find(PODS, "b", namespace=namespace) is None
        assert not await api.delete(PODS, "b", namespace=namespace)
        with pytest.raises(NotFound):
            await api.get(PODS, "b", namespace=namespace)
        with pytest.raises(AlreadyExists):
            await api.create(PODS, {**POD, "metadata": {"name": "a"}}, namespace=namespace)
        with pytest.raises(Conflict):
            await api.patch(PODS, "a", {"metadata": {"resourceVersion": "1", "labels": {}}}, namespace=namespace)
        with pytest.raises(Conflict):
            await api.delete(PODS, "a", namespace=namespace, uid="another")
        with pytest.raises(Invalid):
            await api.create(PODS, {"metadata": {"name": "c"}, "spec": {}}, namespace=namespace)


@pytest.fixture(scope="module")
def kinds(control_plane: ControlPlane) -> Iterator[None]:
    """Our CRDs, from the files under deploy/, established."""
    control_plane.kubectl("apply", "--server-side", "-f", str(ROOT / "deploy" / "crds"))
    names = [f"crd/{name}" for name in CRDS]
    control_plane.kubectl("wait", "--for=condition=Established", "--timeout=20s", *names)
    yield
    control_plane.kubectl("delete", *names)


@pytest.mark.usefixtures("kinds")
async def test_the_crds_are_structural(control_plane: ControlPlane):
    """The real API server has no complaint about any of them: every rule compiles, every schema is structural."""
    async with Api.connect(str(control_plane.kubeconfig)) as api:
        for name in CRDS:
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
            status = json.loads(await api.request("GET", path))["status"]
            conditions = {c["type"]: c["status"] for c in status["conditions"]}
            assert ("True", "True") == (conditions["NamesAccepted"], conditions["Established"])
            assert "NonStructuralSchema" not in conditions


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.yaml")))
async def test_the_examples_are_accepted_in_a_cluster_too(control_plane: ControlPlane, namespace: str, example: str):
    """The YAML that works on one machine is taken by the API server, and nothing of it is pruned."""
    control_plane.kubectl("apply", "--namespace", namespace, "-f", str(ROOT / "examples" / example))
    async with Api.connect(str(control_plane.kubeconfig)) as api:
        for document in yaml.safe_load_all((ROOT / "examples" / example).read_text()):
            name = document["metadata"]["name"]
            there = json.loads(await api.request("GET", SHAREPODS.path(namespace=namespace, name=name)))
            assert document["spec"] == there["spec"]
            found = await api.get(SHAREPODS, name, namespace=namespace)
            assert document["spec"]["template"] == found.spec.template


def sharepod(gpu: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A SharePod named a."""
    template = {"spec": {"containers": [{"name": "main", "image": "busybox"}]}}
    return {"metadata": {"name": "a"}, "spec": {"gpu": gpu, "template": template, **spec}}


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (sharepod({"limit": 1}), "spec.gpu.request: Required value"),
        (sharepod({"request": "lots of it"}), "spec.gpu.request"),
        (sharepod({"request": -1}), "spec.gpu.request"),
        (sharepod({"request": [1]}), "spec.gpu.request"),
        (sharepod({"request": {"gpus": 1}}), "spec.gpu.request"),
        (sharepod({"request": 0.3, "affinity": "a b"}), "spec.gpu.affinity"),
        (
            sharepod({"request": 0.3, "affinity": "red", "antiAffinity": "red"}),
            "affinity and antiAffinity are the same label, which cannot mean together and apart",
        ),
        (sharepod({"request": 0.3}, template={"spec": {"containers": []}}), "spec.template.spec.containers"),
        (
            sharepod({"request": 0.3}, template={"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}),
            "two containers have the same name; each needs one of its own",
        ),
    ],
)
async def test_a_sharepod_that_makes_no_sense_is_refused_by_the_server(
    control_plane: ControlPlane, namespace: str, document: dict[str, Any], sentence: str
):
    """The API server alone, without our webhook, refuses it with the path of the field."""
    async with Api.connect(str(control_plane.kubeconfig)) as api:
        with pytest.raises(Invalid) as caught:
            await api.create(SHAREPODS, document, namespace=namespace)
        assert sentence in str(caught.value)


@pytest.mark.usefixtures("kinds")
async def test_a_place_is_chosen_once(control_plane: ControlPlane, namespace: str):
    """nodeName and gpuID can be set later, and not changed after."""
    async with Api.connect(str(control_plane.kubeconfig)) as api:
        await api.create(SHAREPODS, sharepod({"request": 0.3}), namespace=namespace)
        place = {"spec": {"nodeName": "node-1", "gpu": {"gpuID": "abcde"}}}
        await api.patch(SHAREPODS, "a", place, namespace=namespace)
        for change in ({"nodeName": "node-2"}, {"nodeName": None}, {"gpu": {"gpuID": "zxcvb"}}):
            with pytest.raises(Invalid, match="cannot be changed once"):
                await api.patch(SHAREPODS, "a", {"spec": change}, namespace=namespace)


@pytest.mark.usefixtures("kinds")
def test_a_quota_names_a_bound_for_each_model(control_plane: ControlPlane, namespace: str):
    """GPUQuota takes numbers and quantities; a limit without a bound and two for one model are refused."""
    good = """{apiVersion: aliquot.dev/v1alpha1, kind: GPUQuota, metadata: {name: a},
      spec: {limits: [{model: V100, gpus: 2.5, memory: 64Gi}, {gpus: 8}]}}"""
    control_plane.kubectl("apply", "--namespace", namespace, "-f", "-", input_=good)
    for bad in ("[{model: V100}]", "[{gpus: 1}, {gpus: 2}]"):
        with pytest.raises(RuntimeError, match=r"spec\.limits"):
            text = good.replace("[{model: V100, gpus: 2.5, memory: 64Gi}, {gpus: 8}]", bad)
            control_plane.kubectl("apply", "--namespace", namespace, "-f", "-", input_=text)


@pytest.mark.usefixtures("kinds")
def test_kubectl_shows_the_columns_and_knows_the_short_names(control_plane: ControlPlane, namespace: str):
    """`kubectl get shp` prints request, limit, memory, phase and place."""
    document = sharepod({"request": 0.3, "limit": "600m", "memory": "25%"})
    document |= {"apiVersion": "aliquot.dev/v1alpha1", "kind": "SharePod"}
    control_plane.kubectl("apply", "--namespace", namespace, "-f", "-", input_=json.dumps(document))
    status = {"status": {"phase": "Running", "nodeName": "node-1", "gpuUUID": "GPU-1"}}
    patch = ("patch", "shp", "a", "--subresource=status", "--type=merge", f"--patch={json.dumps(status)}")
    control_plane.kubectl("--namespace", namespace, *patch)
    lines = control_plane.kubectl("get", "--namespace", namespace, "shp").splitlines()

    assert ["NAME", "REQUEST", "LIMIT", "MEMORY", "PHASE", "RESIZE", "NODE", "AGE"] == lines[0].split()
    assert ["a", "0.3", "600m", "25%", "Running", "node-1"] == lines[1].split()[:6]
    assert "Guaranteed part of a GPU" in control_plane.kubectl("explain", "shp.spec.gpu.request")


async def test_server_side_apply_owns_its_fields(control_plane: ControlPlane):
    """Fields of two managers live side by side; a field that both write is the later one's."""
    (node,) = control_plane.fake_nodes(1, "none", prefix="apply-")

    try:
        async with Api.connect(str(control_plane.kubeconfig)) as api:

            def labels(value: str) -> dict[str, Any]:
                return {"metadata": {"name": node, "labels": {"aliquot.dev/owned": value}}}

            await api.apply(NODES, labels("one"), manager="one")
            await api.apply(NODES, labels("two"), manager="two")
            found = await api.get(NODES, node)

            assert "two" == found.metadata.labels["aliquot.dev/owned"]
            assert node == found.metadata.labels["kubernetes.io/hostname"]
    finally:
        control_plane.remove_nodes([node])
