"""The allocation check at work, the end of pods and the recovery, with a real arbiter and an emulated machine."""

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from node_room import NODE, Room

from aliquot.kube.names import PLAN, PLAN_STATUS
from aliquot.kube.objects import OwnerReference, Pod
from aliquot.kube.plan import ContainerPlan, PodPlan, read_missing, write_plan
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Slice
from aliquot.node.allocation.checkpoint import Allotment, Content, write_checkpoint
from aliquot.node.allocation.kubelet import CHECKPOINT
from aliquot.node.allocation.outcomes import WAITS_S
from aliquot.node.machine import NodeOffer
from aliquot.node.pods import NodePod
from aliquot.node.provisioner import TenantProvisioner
from aliquot.status.workloads import SHARE_MISSING

CONTROLLER = OwnerReference(uid="controller", controller=True)


class Checked(Room):
    """The room with `check`, one reconciliation and all that it began."""

    def check(self) -> None:
        """One reconciliation, and all that it began."""

        async def reconcile() -> None:
            await self.allocations.reconcile()
            await asyncio.gather(*self._background)
            await self.allocations.outcomes.step()

        self.do(reconcile())


@pytest.fixture
def room() -> Iterator[Checked]:
    with Checked.opened() as made:
        yield made


def test_the_tenant_of_a_pod_whose_end_was_missed_is_left_at_the_second_check(room: Checked):
    """As where clearing it failed, or it ended while the agent recovered; its part of the GPU is free again."""
    room.started("a")
    room.kubelet.end_pod("ns", "a")
    del room.pods.known["uid-a"]

    room.check()
    assert {"ns/a/main"} == set(room.tenants())
    room.check()

    assert ({}, {}) == (room.tenants(), room.provisioner.tenants)
    assert [] == list((room.folder / "cdi").iterdir())


def test_no_tenant_is_left_before_the_api_server_has_told_the_pods(room: Checked):
    """An agent that goes on with what is on disk knows of no pod, which says nothing about them."""
    room.started("a")
    room.pods.known.clear()
    room.pods.synced = False

    for _ in range(3):
        room.check()

    assert {"ns/a/main"} == set(room.tenants())


def test_a_device_file_that_can_not_be_removed_is_tried_again(room: Checked):
    """The tenant is left all the same, nothing fails, and the name stays known until its file is gone."""
    room.started("a")
    owner = room.pods.known["uid-a"].key
    (file,) = (room.folder / "cdi").iterdir()
    file.unlink()
    file.mkdir()  # not to be unlinked by anybody
    room.kubelet.end_pod("ns", "a")
    del room.pods.known["uid-a"]

    room.do(room.allocations.unprepare(owner))
    assert ({}, 1) == (room.tenants(), len(list(room.allocations.records)))
    file.rmdir()
    file.write_text("{}")
    for _ in range(2):
        room.check()

    assert ([], []) == (list(room.allocations.records), list((room.folder / "cdi").iterdir()))


def test_a_refusal_that_came_right_costs_no_pod_its_life(room: Checked):
    """A pod of a controller is replaced while one of its containers is refused, not after that one was provisioned."""
    room.started("a")
    owner = room.pods.known["uid-a"].key
    room.pods.known["uid-a"].metadata.owner_references = [CONTROLLER]

    room.allocations.outcomes.note(owner, "main", "refused", "no plan")
    room.allocations.outcomes.note(owner, "side", "refused", "no such GPU")
    room.allocations.outcomes.note(owner, "main", "provisioned", "")
    room.check()
    assert ["ns/a uid-a"] == room.answers.deleted
    room.allocations.outcomes.note(owner, "side", "provisioned", "")
    room.check()

    assert ["ns/a uid-a"] == room.answers.deleted


def test_pods_of_one_controller_are_replaced_with_growing_pauses(room: Checked):
    """All that one check finds are replaced together; those that come later after pauses of up to ten minutes."""
    for name in "ab":
        room.pod(name, 0, 300, 1024)
    for name in "ab":
        room.pods.known[f"uid-{name}"].metadata.owner_references = [CONTROLLER]
        room.allocations.outcomes.note(room.pods.known[f"uid-{name}"].key, "main", "refused", "no such GPU")

    began_s = []
    for second in range(0, 3600, 10):
        room.clock.now_s, before = float(second), len(room.answers.deleted)
        room.check()
        began_s += [second] * (len(room.answers.deleted) - before)

    assert [0, 10, 30, 70, 150, 310, 630, 1230, 1830, 2430, 3030] == began_s[::2] == began_s[1::2]


def test_a_tenant_that_can_not_be_had_again_is_told_on_its_pod(room: Checked, monkeypatch: pytest.MonkeyPatch):
    """An error of the disk is one container's trouble; the agent starts."""
    room.started("a")
    plan = room.pods.known["uid-a"].metadata.annotations[PLAN]
    assert plan == next(iter(room.allocations.records)).plan
    room.provisioner.remove_pod("uid-a")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(room.provisioner, "provision", full)

    assert room.do(room.allocations.recover()).startswith("0 tenants")
    assert ["GpuShareMissing"] == room.answers.reasons
    room.do(room.allocations.outcomes.step())
    assert "No space left" in read_missing(room.answers.annotations[PLAN_STATUS])["main"]


def test_what_a_crash_left_amid_writing_a_device_file_is_swept(room: Checked):
    """A file under a passing name is nobody's at the agent's start."""
    room.started("a")
    (room.folder / "cdi/aliquot.dev-gpu_ab12.json.new").write_text("{")

    said = room.do(room.allocations.recover())

    assert said.startswith("1 tenants, ")
    assert [".json"] == [path.suffix for path in (room.folder / "cdi").iterdir()]


def test_an_init_container_that_has_ended_takes_nothing_from_others_after_a_restart(room: Checked, tmp_path: Path):
    """What was given on to another pod stays with it: the new agent provisions those that run, and tells no loss."""
    uuid = GpuUuid(room.machine.gpus[0].uuid)

    def provisioned(pod: str, container: str, plan: PodPlan) -> Allotment:
        return Allotment(f"{pod}-{container}", (), f"uid-{pod}", "ns", pod, container, write_plan(plan))

    def given(milli: int, init: int = 0) -> ContainerPlan:
        return ContainerPlan((Slice(uuid, milli, 1000, 1024),), init=init)

    first = PodPlan(NODE, {"warm": given(800, 1), "main": given(300)})
    second = PodPlan(NODE, {"main": given(700)})
    kept = (provisioned("a", "warm", first), provisioned("b", "main", second), provisioned("a", "main", first))
    write_checkpoint(room.settings.checkpoint, Content(NODE, kept))
    settings = replace(room.settings, kubelet_dir=str(tmp_path))
    for pod, plan in (("a", first), ("b", second)):
        body = {
            "metadata": {"name": pod, "namespace": "ns", "uid": f"uid-{pod}", "annotations": {PLAN: write_plan(plan)}},
            "status": {"phase": "Running"},
        }
        room.pods.known[f"uid-{pod}"] = msgspec.convert(body, NodePod)

    said = room.do(room.agent_allocations(settings, room.provisioner).recover())

    assert said.startswith("2 tenants, 0 differences")
    assert {"ns/a/main", "ns/b/main"} == set(room.tenants())
    assert [] == room.answers.reasons


def running(room: Checked, name: str, **waiting: str) -> None:
    """The API server knows that the pod's containers run, but for those that wait: their names with the reasons."""
    pod = room.pods.known[f"uid-{name}"]
    states = {"main": {"running": {}}} | {c: {"waiting": {"reason": reason}} for c, reason in waiting.items()}
    body = {"phase": "Running", "containerStatuses": [{"name": c, "state": state} for c, state in states.items()]}
    pod.status = msgspec.convert(body, type(pod.status))


def kubelet_forgets(room: Checked) -> None:
    """Kubelet lost its device checkpoint and wrote a new one; its containers go on."""
    room.kubelet.end_pod("ns", "a")
    (room.settings.device_plugins / CHECKPOINT).write_text('{"Data": {"PodDeviceEntries": null}, "Checksum": 0}')


def forget_all(room: Checked) -> None:
    """What a new agent has in memory, and kubelet after it lost its checkpoint."""
    kubelet_forgets(room)
    new_agent(room)


def new_agent(room: Checked) -> None:
    """Nothing in memory, and the room's machine."""
    room.provisioner = TenantProvisioner(
        NODE, NodeOffer(room.machine), room.settings.tenants, room.folder, room.provisioner.driver
    )
    room.allocations.provisioner = room.provisioner


def test_a_container_whose_gpu_is_not_seen_at_a_start_keeps_its_folder_for_the_next(room: Checked):
    """An agent that starts while the driver does not list a GPU sweeps nothing of it; the next one restores the share.

    The folder is mounted in the container, which could start no CUDA program in one that was made anew.
    """
    room.started("a")
    running(room, "a")
    before = room.tenants()
    (folder,) = room.settings.tenants.iterdir()
    made = folder.stat().st_ino
    whole = room.machine
    room.machine = dataclasses.replace(whole, gpus=whole.gpus[1:])
    new_agent(room)

    assert room.do(room.allocations.recover()).startswith("0 tenants")
    assert {} == room.tenants()
    room.machine = whole
    new_agent(room)

    assert room.do(room.allocations.recover()).startswith("1 tenants")
    assert (before, made) == (room.tenants(), folder.stat().st_ino)


@pytest.mark.parametrize("lost", ["kubelet's", "both"])
def test_a_container_that_runs_keeps_its_share_when_checkpoints_are_lost(room: Checked, lost: str):
    """Its tenant, folder and socket are as before the restart, whether our own checkpoint is there or not."""
    room.started("a")
    running(room, "a")
    before = room.tenants()
    (folder,) = room.settings.tenants.iterdir()
    socket = (folder / "socket").stat().st_ino
    forget_all(room)
    if lost == "both":
        room.settings.checkpoint.unlink()
        room.do(room.allocations.records.start_with(()))

    room.do(room.allocations.recover())
    for _ in range(3):
        room.check()

    assert before == room.tenants()
    assert socket == (folder / "socket").stat().st_ino
    assert ["ns/a/main"] == [tenant.record.name for tenant in room.provisioner.tenants.values()]
    assert "GpuShareMissing" not in room.answers.reasons


def test_nothing_is_swept_before_the_api_server_has_listed_the_pods(room: Checked):
    """An agent that starts beside a silent API server, with both checkpoints lost, removes nothing."""
    room.started("a")
    running(room, "a")
    before = room.tenants()
    forget_all(room)
    room.settings.checkpoint.unlink()
    room.do(room.allocations.records.start_with(()))
    room.pods.synced = False
    pods, room.pods.known = room.pods.known, {}

    room.do(room.allocations.recover())
    for _ in range(3):
        room.check()
    assert before == room.tenants()
    room.pods.known, room.pods.synced = pods, True
    room.check()

    assert before == room.tenants()
    assert 1 == len(room.provisioner.tenants)


def test_a_pod_deleted_by_force_leaves_when_its_processes_have_ended(room: Checked, monkeypatch: pytest.MonkeyPatch):
    """Kubelet and the API server have forgotten it; a process in its cgroup keeps the share."""
    room.started("a")
    owner = room.pods.known["uid-a"].key
    room.pods.known.pop("uid-a")
    kubelet_forgets(room)
    processes = {"uid-a"}
    monkeypatch.setattr("aliquot.node.allocation.lifecycle.pods_with_processes", lambda: processes)

    monkeypatch.setattr("aliquot.node.allocation.lifecycle.WAIT_S", 0.0)
    room.do(room.allocations.unprepare(owner))
    assert {"ns/a/main"} == set(room.tenants())
    processes.clear()
    for _ in range(2):
        room.check()

    assert {} == room.tenants()


@pytest.mark.parametrize("controlled", [True, False])
def test_a_pod_that_kubelet_started_without_devices_is_shown_and_replaced(room: Checked, controlled: bool):
    """A container that started while the plugin was not registered says so in its pod's state, and the pod is replaced
    after two minutes where a controller makes another."""
    room.pod("a", 0, 300, 1024)
    pod = room.pods.known["uid-a"]
    pod.metadata.owner_references = [CONTROLLER] if controlled else []
    running(room, "a")
    kubelet_forgets(room)

    room.check()
    assert ["GpuShareMissing"] == room.answers.reasons
    shown = msgspec.convert(msgspec.to_builtins(pod), Pod)
    shown.spec.node_name, shown.metadata.annotations[PLAN_STATUS] = NODE, room.answers.annotations[PLAN_STATUS]
    assert SHARE_MISSING == shown.state
    assert "container main runs without its share: kubelet gave it no device" == shown.share_missing
    assert [] == room.answers.deleted
    room.clock.now_s += WAITS_S
    room.check()

    assert (["ns/a uid-a"] if controlled else []) == room.answers.deleted
    assert ("GpuShareReplaced" if controlled else "GpuShareFailed") == room.answers.reasons[-1]


def test_a_container_that_ended_after_kubelet_lost_its_devices_is_shown_and_replaced(room: Checked):
    """Kubelet cannot start it again and says so by turns with its pause; before it ended it was left alone."""
    room.started("a")
    room.pods.known["uid-a"].metadata.owner_references = [CONTROLLER]
    running(room, "a")
    kubelet_forgets(room)
    room.check()
    assert [] == room.answers.reasons_of_pods

    for reason in ("CreateContainerConfigError", "CrashLoopBackOff", "CreateContainerConfigError"):
        running(room, "a", main=reason)
        room.check()
        room.clock.now_s += WAITS_S / 3
    assert [] == room.answers.deleted
    room.check()

    said = "kubelet lost its devices and cannot start it again"
    assert {"main": said} == read_missing(room.answers.annotations[PLAN_STATUS])
    assert ["ns/a uid-a"] == room.answers.deleted
    assert "GpuShareReplaced" == room.answers.reasons[-1]


def test_a_pod_of_which_a_container_runs_with_its_share_is_not_replaced_for_another(room: Checked):
    """The container that kubelet cannot start again is shown; the one that runs keeps what it has."""
    room.started("a")
    pod = room.pods.known["uid-a"]
    pod.metadata.owner_references = [CONTROLLER]
    pod.spec.containers.append(replace(pod.spec.containers[0], name="side"))
    running(room, "a", side="CrashLoopBackOff")
    kubelet_forgets(room)

    for _ in range(3):
        room.check()
        room.clock.now_s += WAITS_S

    assert ({"ns/a/main"}, []) == (set(room.tenants()), room.answers.deleted)
    assert ["side"] == list(read_missing(room.answers.annotations[PLAN_STATUS]))


def test_a_container_that_had_no_share_and_has_one_now_costs_no_pod_its_life(room: Checked):
    """Its next start goes through the agent: the state is over, and the pod stays."""
    room.pod("a", 0, 300, 1024)
    room.pods.known["uid-a"].metadata.owner_references = [CONTROLLER]
    running(room, "a")
    kubelet_forgets(room)
    room.check()
    assert SHARE_MISSING in room.answers.reasons

    (room.settings.device_plugins / CHECKPOINT).unlink()  # the stand-in writes none
    room.admit("a", 30)
    room.start("a")
    kubelet_forgets(room)
    room.clock.now_s += WAITS_S
    room.check()

    assert [] == room.answers.deleted


def test_no_container_misses_its_share_before_the_agent_has_recovered(room: Checked):
    """Containers that no record has are recovered by their folders first; kubelet and both checkpoints say nothing."""
    room.started("a")
    running(room, "a")
    room.pods.known["uid-a"].metadata.owner_references = [CONTROLLER]
    forget_all(room)
    room.settings.checkpoint.unlink()
    room.do(room.allocations.records.start_with(()))

    for _ in range(3):
        room.check()
        room.clock.now_s += WAITS_S

    assert ([], []) == (room.answers.reasons_of_pods, room.answers.deleted)


def test_an_arbiter_that_takes_no_tenants_is_no_arbiter(room: Checked):
    """The check asks both of its sockets: without one of them pods would be sent here in vain."""
    assert "" == room.provisioner.check_arbiter()
    (room.folder / "admin.sock").unlink()

    assert "admin.sock" in room.provisioner.check_arbiter()
