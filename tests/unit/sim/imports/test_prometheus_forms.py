"""Prometheus's answers as real clusters give them: renamed labels, MIG, ranges in several files, names used again."""

import json
from pathlib import Path

import pytest
from imported_traces import Imported

START = 1_767_322_800


def answer(path: Path, *series: tuple[dict[str, str], int, int, str], step: int = 60) -> Path:
    """A file with series, each with its labels, its first and last step and its value."""
    result = [
        {"metric": labels, "values": [[START + step * at, value] for at in range(first, last + 1)]}
        for labels, first, last, value in series
    ]
    path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}))
    return path


def dcgm(**labels: str) -> dict[str, str]:
    return {"__name__": "DCGM_FI_DEV_GPU_UTIL", "job": "dcgm-exporter", "Hostname": "node-1"} | labels


def requests(pod: str, resource: str = "nvidia_com_gpu", **labels: str) -> dict[str, str]:
    known = {"__name__": "kube_pod_container_resource_requests", "namespace": "team", "pod": pod, "container": "main"}
    return known | {"resource": resource, "node": "node-1"} | labels


def phase(pod: str, **labels: str) -> dict[str, str]:
    return {"__name__": "kube_pod_status_phase", "namespace": "team", "pod": pod, "phase": "Running"} | labels


@pytest.fixture
def horizon() -> tuple[dict[str, str], int, int, str]:
    """A series that goes on, so that the range is longer than the pods."""
    return {"__name__": "kube_pod_status_phase", "namespace": "x", "pod": "x", "phase": "Pending"}, 0, 60, "1"


def test_the_pod_of_the_exporter_is_no_job(tmp_path: Path, horizon):
    """Where labels are renamed, `pod` is dcgm-exporter's own, and a GPU without `exported_pod` is idle."""
    used = dcgm(UUID="GPU-a", pod="dcgm-exporter-x", exported_pod="train-0", exported_namespace="team")
    idle = dcgm(UUID="GPU-b", pod="dcgm-exporter-x", namespace="monitoring")
    other = dcgm(UUID="GPU-c", pod="nvidia-dcgm-exporter-y", container="nvidia-dcgm-exporter", job="second")
    plain = dcgm(UUID="GPU-d", pod="serve-0", namespace="web", job="third", container="vllm")

    imported = Imported(
        tmp_path, "prometheus",
        answer(tmp_path / "a.json", (used, 1, 30, "97"), (idle, 0, 60, "0"), (other, 0, 60, "0"), (plain, 1, 10, "5"),
               horizon),
    )  # fmt: skip

    assert {"team/train-0": (0, 1800, 1), "web/serve-0": (0, 600, 1)} == imported.times()
    assert 2 == imported.facts["notes"]["series of idle GPUs were left out, whose pod is dcgm-exporter's own"]


def test_mig_slices_are_sevenths(tmp_path: Path, horizon):
    """By DCGM's profile, each instance for itself, and by the name of the resource that was asked for."""
    slices = [dcgm(UUID="GPU-a", GPU_I_ID=str(n), GPU_I_PROFILE="1g.10gb", pod="two", namespace="t") for n in (7, 8)]
    asked = requests("slice", "nvidia_com_mig_3g_40gb")

    imported = Imported(
        tmp_path, "prometheus",
        answer(tmp_path / "a.json", *((labels, 1, 10, "1") for labels in slices), (asked, 1, 20, "1"),
               (phase("slice"), 1, 10, "1"), horizon),
    )  # fmt: skip

    assert {"t/two": (0, 600, 0.284), "team/slice": (0, 600, 0.428)} == imported.times()


def test_a_range_in_several_files_is_one(tmp_path: Path, horizon):
    """Prometheus answers 11,000 points at most; what each file says of a pod is not added up."""
    cpu = requests("train", "cpu")
    files = [
        answer(tmp_path / f"{n}.json", (requests("train"), first, last, "2"), (cpu, first, last, "8"),
               (phase("train"), first, last, "1"), horizon)
        for n, (first, last) in enumerate([(1, 20), (21, 40)])
    ]  # fmt: skip

    imported = Imported(tmp_path, "prometheus", *files)

    assert {"team/train": (0, 2400, 2)} == imported.times()
    assert "8000" == imported.rows["team/train"]["cpu_milli"]


def test_grids_that_are_not_aligned_have_the_step_of_the_query(tmp_path: Path, horizon):
    """Each query begins at its own second; a pod that runs until the end still does."""
    first = answer(tmp_path / "a.json", (requests("ends"), 1, 20, "1"), (requests("stays"), 1, 60, "1"), horizon)
    later = json.loads(
        answer(tmp_path / "b.json", (phase("ends"), 1, 10, "1"), (phase("stays"), 1, 59, "1")).read_text()
    )
    for series in later["data"]["result"]:
        series["values"] = [[when + 13, value] for when, value in series["values"]]
    (tmp_path / "b.json").write_text(json.dumps(later))

    imported = Imported(tmp_path, "prometheus", first, tmp_path / "b.json")

    assert ["team/ends"] == list(imported.rows)
    assert {"still running at the end": 1} == {
        reason: count for reason, count in imported.facts["dropped"].items() if reason.startswith("still")
    }
    assert any("known to 60 s" in note for note in imported.facts["notes"])


def test_a_name_that_is_used_again_is_another_pod(tmp_path: Path, horizon):
    """A StatefulSet's pods keep their names; the uid tells them apart."""
    series = [
        (labels | {"uid": uid}, first, last, "1")
        for uid, first, last in (("a", 1, 10), ("b", 30, 40))
        for labels in (requests("db-0"), phase("db-0"))
    ]

    imported = Imported(tmp_path, "prometheus", answer(tmp_path / "a.json", *series, horizon))

    assert [(0, 600, 1), (1740, 660, 1)] == list(imported.times().values())
