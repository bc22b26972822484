"""Who uses a shared GPU without having registered is told once, after a time of grace, and never on a number alone."""

from dataclasses import replace

import pytest
from node_scenes import TRAIN, UUIDS, facts, status

from aliquot.node.audit import MAX_REPORTED, Audit, container_of
from aliquot.node.processes import GpuProgram, pod_of
from aliquot.status.nodes import AuditTotals, NodeReport, Owner
from aliquot.status.tenants import Unregistered

GRACE_S = 10.0
UID = "0b7a5a3e-1c2d-4e5f-8a9b-0123456789ab"
CONTAINER = "c0ffee" + "0" * 58


def seen(*pids: int, compared: bool = True, boot_id: int = 1) -> NodeReport:
    """The node with these unregistered programs on its first GPU."""
    now = status()
    now.gpus[0].unregistered = [Unregistered(pid, 300) for pid in pids]
    now.compared, now.boot_id = compared, boot_id
    return facts(status=lambda: now)


def audit(**changes: object) -> Audit:
    """One to whom every number is a program that has the driver open, but for `changes`."""
    return Audit(lambda pid: replace(GpuProgram(pid, "1", "python3", drives=True), **changes), GRACE_S)  # type: ignore[arg-type]


def told(one: Audit, *looks: tuple[float, NodeReport]) -> list[list[int]]:
    """The numbers told at each look."""
    return [[bypass.program.pid for bypass in one.unreported(now, at_s)] for at_s, now in looks]


def test_a_program_past_aliquot_is_told_once_after_its_grace():
    """Not before, not again, and it stays counted for as long as it runs."""
    one = audit()

    assert [[], [], [7], []] == told(one, *((at_s, seen(7)) for at_s in (0, 9, 10, 20)))
    assert AuditTotals(True, {UUIDS[0]: 1, UUIDS[1]: 0}, 1, 0) == one.totals
    assert [[]] == told(one, (21, seen()))
    assert ({UUIDS[0]: 0, UUIDS[1]: 0}, 1) == (one.totals.standing, one.totals.found)


@pytest.mark.parametrize(
    ("expected", "pod"), [([], UID), ([7], UID.replace("0", "1")), ([7], "")], ids=["own", "another's", "no pod"]
)
def test_on_a_gpu_that_is_not_enforced_only_strangers_are_told(expected: list[int], pod: str):
    """The owner's programs have the bare driver and register nowhere; a program of anybody else is past Aliquot."""
    now = status()
    now.gpus[1].bare, now.compared = [Unregistered(7, 300)], True
    owned = facts(status=lambda: now, owners=lambda: {TRAIN: Owner("team", "train-0", "main", UID)})
    one = audit(cgroup=f"0::/kubepods/pod{pod}/{CONTAINER}" if pod else "0::/system.slice/x.service")

    assert [[], expected] == told(one, (0, owned), (GRACE_S, owned))


@pytest.mark.parametrize(
    ("expected", "changes", "looks"),
    [
        ([[], [], []], {}, [(0, seen(7)), (5, seen()), (30, seen(7))]),
        ([[], [], [], [7]], {}, [(0, seen(7)), *((at_s, seen(7, boot_id=2)) for at_s in (9, 12, 19))]),
        ([[], []], {"drives": False}, [(0, seen(7)), (60, seen(7))]),
        ([[], [7]], {"drives": None}, [(0, seen(7)), (60, seen(7))]),
        ([[], []], {"stopped": True}, [(0, seen(7)), (60, seen(7))]),
    ],
    ids=[
        "it registers in time", "an arbiter that starts again gives a new time of grace",
        "it has no driver open: another program is meant", "whether it has one open cannot be seen",
        "it is stopped: it can neither register nor load the GPU",
    ],
)  # fmt: skip
def test_one_that_may_still_register_is_not_told(expected: list, changes: dict[str, object], looks: list):
    """A program is accused once it has run for the whole time of grace beside one arbiter, with the driver open."""
    assert expected == told(audit(**changes), *looks)


def test_without_a_comparison_nobody_is_accused_and_the_grace_starts_again():
    """An arbiter that is away, or one that does not ask NVML, says nothing about anybody."""
    one = audit()
    away = facts(status=lambda: None)

    assert [[], [], []] == told(one, (0, seen(7)), (9, away), (11, seen(7, compared=False)))
    assert not one.totals.works
    assert [[], [7]] == told(one, (12, seen(7)), (22, seen(7)))


def test_stopping_for_a_moment_makes_no_new_grace():
    """The time for which it was stopped is not a part of its grace; what went before is."""
    stopped = [False]
    one = Audit(lambda pid: GpuProgram(pid, "1", drives=True, stopped=stopped[0]), GRACE_S)
    found = []
    for at_s in range(0, 40, 4):
        stopped[0] = at_s % 8 == 4
        found += [at_s for each in told(one, (at_s, seen(7))) for _ in each]

    assert [24] == found


def test_a_number_that_was_given_to_another_program_starts_anew():
    """The moment at which a program began tells it from its predecessor."""
    began = ["1"]
    one = Audit(lambda pid: GpuProgram(pid, began[0], drives=True), GRACE_S)
    told(one, (0, seen(7)))
    began[0] = "2"

    assert [[], [7]] == told(one, (11, seen(7)), (21, seen(7)))


def test_many_at_once_are_told_bit_by_bit():
    """No look tells more than its share, and none is forgotten."""
    one, crowd = audit(), seen(*range(1, MAX_REPORTED + 5))
    told(one, (0, crowd))

    assert [MAX_REPORTED, 4, 0] == [len(told(one, (at_s, crowd))[0]) for at_s in (10, 11, 12)]
    assert MAX_REPORTED + 4 == one.totals.standing[UUIDS[0]]


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        (f"0::/kubepods/burstable/pod{UID}/{CONTAINER}", (UID, CONTAINER)),
        (
            f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope",
            (UID, CONTAINER),
        ),
        (f"12:memory:/kubepods/pod{UID}/{CONTAINER}\n11:pids:/kubepods/pod{UID}/{CONTAINER}", (UID, CONTAINER)),
        (f"0::/kubepods/pod{UID}", (UID, "")),
        ("0::/system.slice/gdm.service", ("", "")),
        ("0::/podman/pod-of-mine", ("", "")),
    ],
    ids=["cgroupfs", "systemd", "v1", "no container", "a service", "another's pod"],
)
def test_a_cgroup_names_its_pod_and_container(cgroup: str, expected: tuple[str, str]):
    """As kubelet's two drivers write it, in either version of cgroups."""
    assert expected == pod_of(cgroup)


def test_a_container_is_known_by_its_id():
    """With the runtime's prefix before it; no id is nobody's."""
    statuses = [("side", "containerd://" + "1" * 64), ("main", "containerd://" + CONTAINER)]

    assert ["main", "", ""] == [container_of(one, statuses) for one in (CONTAINER, "2" * 64, "")]
