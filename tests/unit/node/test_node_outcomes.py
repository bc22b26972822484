"""What the node made of a plan: told soon where it matters, later where it does not, and never twice."""

import asyncio
from typing import Any

from aliquot.kube.errors import Conflict, KubeError, NotFound
from aliquot.kube.names import DIALECT, PLAN_STATUS
from aliquot.kube.objects import Meta
from aliquot.node.allocation.checkpoint import PodKey
from aliquot.node.allocation.outcomes import AGAIN_S, STATUS_BYTES, SUCCESS_DELAY_S, Outcomes
from aliquot.node.pods import NodePod
from aliquot.node.settings import NodeSettings

POD = PodKey("uid-a", "default", "a")


class Scene:
    """Outcomes over an API that notes what it is sent, with a clock that the test turns."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.fails: KubeError | None = None
        self.written: list[tuple[str, str]] = []
        self.warned: list[str] = []
        self.theirs: list[dict[str, str]] = []
        self.outcomes = Outcomes(NodeSettings(), self, self, self, self)  # type: ignore[arg-type]

    def get(self, uid: str) -> NodePod:
        """The pod, written for gpushare."""
        return NodePod(Meta(name=POD.pod, namespace=POD.namespace, uid=uid, annotations={DIALECT: "aliyun"}))

    def monotonic_s(self) -> float:
        return self.now_s

    async def patch(self, resource: Any, name: str, body: dict[str, Any], *, namespace: str) -> object:
        if self.fails is not None:
            raise self.fails
        assert body["metadata"]["uid"]
        notes = dict(body["metadata"]["annotations"])
        self.written.append((f"{namespace}/{name}", notes.pop(PLAN_STATUS)))
        self.theirs.append(notes)
        return None

    async def about_pod(self, _pod: PodKey, reason: str, message: str) -> None:
        self.warned.append(f"{reason} {message}")

    def tell(self, container: str, outcome: Any, why: str = "", owner: PodKey = POD) -> None:
        asyncio.run(self.outcomes.report(owner, container, outcome, why))

    def after(self, wait_s: float = 0.0) -> list[tuple[str, str]]:
        """What has been written in all when so much time has gone by."""
        self.now_s += wait_s
        asyncio.run(self.outcomes.step())
        return self.written


def test_good_news_waits_until_a_crowd_has_started_and_is_one_write_for_a_pod():
    """Nobody needs to know at once that all is well; the pod's containers are told together."""
    scene = Scene()
    scene.tell("main", "provisioned")
    assert [] == scene.after(SUCCESS_DELAY_S - 1)
    scene.tell("side", "provisioned")

    assert [("default/a", "main: provisioned; side: provisioned")] == scene.after(1)
    assert [] == scene.warned


def test_tools_of_other_projects_are_told_that_a_pod_has_its_devices_once_it_has():
    """A pod that waits for its share does not carry the annotations by which its project marks those that have it."""
    scene = Scene()
    scene.tell("main", "waits", "the arbiter is away")
    scene.after()
    scene.tell("main", "provisioned")
    scene.after(SUCCESS_DELAY_S)

    assert [{}, {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}] == scene.theirs


def test_bad_news_is_told_at_once_and_so_is_its_end():
    """A container that waits is told with the reason, once however often; when it has its share, that too."""
    scene = Scene()
    for _ in range(3):
        scene.tell("main", "waits", "the GPU is full")
        scene.after(0.2)
    scene.tell("main", "provisioned")

    assert [("default/a", "main: waits (the GPU is full)"), ("default/a", "main: provisioned")] == scene.after()
    assert 3 * ["GpuShareWaits container main does not get its share: the GPU is full"] == scene.warned


def test_a_refusal_does_not_wait_for_good_news_of_the_same_pod():
    """One container has its share, the other is refused: both are told now."""
    scene = Scene()
    scene.tell("main", "provisioned")
    scene.tell("side", "refused", "no plan")

    assert [("default/a", "main: provisioned; side: refused (no plan)")] == scene.after()


def test_what_the_api_server_did_not_take_is_told_again():
    """While it is away the news stays; a pod that is gone is not told to it."""
    scene = Scene()
    scene.fails = KubeError("busy")
    scene.tell("main", "refused", "no plan")
    assert [] == scene.after()
    scene.fails = None
    assert [] == scene.after(AGAIN_S - 1)
    assert [("default/a", "main: refused (no plan)")] == scene.after(1)

    scene.fails = NotFound("no such pod")
    scene.tell("main", "provisioned")
    assert 1 == len(scene.after())
    scene.fails = None
    assert 1 == len(scene.after(10 * AGAIN_S))


def test_a_pod_that_is_over_is_forgotten():
    """Nothing is written about it, and nothing of it is kept."""
    scene = Scene()
    scene.tell("main", "provisioned")
    scene.outcomes.forget(POD)

    assert [] == scene.after(SUCCESS_DELAY_S)
    assert not any(vars(scene.outcomes)[name] for name in ("_outcomes", "_written", "_due_s"))


def test_what_is_told_of_a_pod_that_is_over_is_not_kept():
    """A container may still wait when its pod goes: the API server says so, and nothing of it stays."""
    scene = Scene()
    for fault in (NotFound("no such pod"), Conflict("another uid")):
        scene.tell("main", "waits", "the GPU is full")
        scene.fails = fault
        scene.after()
        assert not any(vars(scene.outcomes)[name] for name in ("_outcomes", "_written", "_due_s"))


def test_the_text_has_a_bound():
    """A reason without end is cut, as an annotation must not grow with it."""
    scene = Scene()
    scene.tell("main", "waits", "x" * 5000)

    assert STATUS_BYTES == len(scene.after()[0][1])
