"""Placement on one machine, as people meet it: labels, links, who holds what, and why something waits."""

from collections.abc import Iterator

import pytest

from .stage import Aliquot, Cluster, engine_of, sharepod


@pytest.fixture
def quad(aliquot_cli: Aliquot, tmp_path) -> Iterator[Cluster]:
    """An engine with four emulated V100, wired as on a p3.8xlarge."""
    with engine_of(aliquot_cli, "v100x4", "--policy", "gaia", "--no-web"):
        yield Cluster(aliquot_cli, tmp_path)


def facts(up: Cluster, *words: str) -> list[dict]:
    """What a command says as JSON."""
    return up.command.facts(*words)


def held(up: Cluster) -> dict[str, list[int]]:
    """GPUs of every tenant."""
    found: dict[str, list[int]] = {}
    for gpu in facts(up, "get", "gpus"):
        for tenant in gpu["tenants"]:
            found.setdefault(tenant["name"], []).append(gpu["index"])
    return found


def test_labels_and_links_decide_where_sharepods_go(quad: Cluster):
    """Anti-affinity keeps apart, exclusion keeps others out, two GPUs are a linked pair, and one without room waits."""
    quad.apply(sharepod("pair", "sleep 60", request=2))
    quad.apply(sharepod("a", "sleep 60", antiAffinity="noisy"))
    quad.apply(sharepod("b", "sleep 60", antiAffinity="noisy"))
    quad.apply(sharepod("c", "sleep 60", antiAffinity="noisy"))
    quad.apply(sharepod("d", "sleep 60", exclusion="mine"))
    where = held(quad)
    gpus = facts(quad, "get", "gpus")
    first, second = where["default/pair"]

    assert {"default/pair", "default/a", "default/b"} == set(where)
    assert where["default/a"] != where["default/b"]
    assert "NV2" == gpus[first]["links"][second]
    assert {"anti-affinity": "noisy"} == gpus[where["default/a"][0]]["labels"]
    assert ["default/c", "default/d"] == [found["name"] for found in facts(quad, "explain")]


def test_explain_says_what_would_help(quad: Cluster):
    """A SharePod that waits is told the first obstacle on each GPU and the smallest change; once made, it runs."""
    for name in ("a", "b", "c", "d"):
        quad.apply(sharepod(name, "sleep 60", request=0.8, exclusion=name))
    quad.apply(sharepod("late", "sleep 60", request=0.5))
    (found,) = facts(quad, "explain", "late")
    text = quad.command("explain", "late").stdout
    wait = next(change for change in found["changes"] if change["kind"] == "wait")

    assert not found["fits"]
    assert ["gpu-exclusion"] * 4 == [device["reason"]["code"] for device in found["verdicts"][0]["devices"]]
    assert text.startswith("default/late waits: asks 0.50 GPU; node ")
    assert "Nearest: " in text
    quad.command("delete", wait["ends"][0].removeprefix("default/"))
    quad.wait_phase("late", "Running")
    assert quad.command("explain", "late").stdout.startswith("default/late is on GPU ")


def test_explain_takes_requests_that_one_thinks_of(quad: Cluster):
    """A request that does not exist is explained against the engine, and nothing is reserved by it."""
    quad.apply(sharepod("a", "sleep 60", request=0.7))
    fits = quad.command("explain", "--gpu-request", "0.3")
    never = quad.command("explain", "--gpu-request", "1", "--gpu-model", "h100")
    unknown = quad.command("explain", "nobody")

    assert (0, True) == (fits.returncode, fits.stdout.startswith("the request fits: asks 0.30 GPU."))
    assert "never fits here: no GPU of model" in never.stdout
    assert (2, True) == (unknown.returncode, 'no sharepod or tenant "nobody"; there is default/a' in unknown.stderr)
    assert {"default/a"} == set(held(quad))


def test_get_gpus_shows_shares_and_links(quad: Cluster):
    """The table has a line for each GPU with what is promised of it and its nearest GPUs, and one for each tenant."""
    quad.apply(sharepod("a", "sleep 60", request=0.3, memory="2Gi"))
    lines = quad.command("get", "gpus").stdout.splitlines()

    assert ["GPU", "MODEL", "PROMISED", "MEMORY", "NEAREST", "LABELS", "UUID"] == lines[0].split()
    assert 6 == len(lines)
    shares = next(line for line in lines if "0.30 of 1.00" in line)
    assert "2.0 / 16.0 GiB" in shares
    assert "NV2 " in shares
    assert ["default/a", "0.30", "2.0", "GiB"] == lines[lines.index(shares) + 1].split()


def test_a_run_carries_labels_and_names(quad: Cluster):
    """`aliquot run` takes the labels of its device from the command line."""
    quad.apply(sharepod("a", "sleep 60", request=0.3, exclusion="mine"))
    joined = quad.command(
        "run", "--gpu-request", ".2", "--exclusion", "mine", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"
    )
    apart = quad.command("run", "--gpu-request", ".2", "--gpu-id", "v", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    index = str(quad.pod("a")["gpus"][0])

    assert joined.stdout.strip() == index != apart.stdout.strip()


def test_an_unknown_policy_is_told_before_anything_starts(aliquot_cli: Aliquot):
    """`up` with a policy that does not exist lists those that do."""
    done = aliquot_cli("up", "--emulate", "v100", "--policy", "best")

    assert (2, True) == (done.returncode, 'no policy "best"; there are aliquot, bestfit, ' in done.stderr)


@pytest.fixture
def pair(aliquot_cli: Aliquot, tmp_path) -> Iterator[Cluster]:
    """An engine with two emulated V100, the default policy, and nothing learned."""
    with engine_of(aliquot_cli, "v100x2", "--state-dir", str(tmp_path / "state"), "--no-web"):
        yield Cluster(aliquot_cli, tmp_path)


def test_an_engine_that_has_learned_nothing_packs(pair: Cluster):
    """The first SharePods share a GPU as long as they fit and leave the next whole; explain gives the true reason."""
    pair.apply(sharepod("notebook", "sleep 60", request=0.3, memory="4Gi"))
    pair.apply(sharepod("service", "sleep 60", request=0.4, memory="4Gi"))
    assert {"default/notebook": [0], "default/service": [0]} == held(pair)
    (large,) = facts(pair, "explain", "--gpu-request", "0.9")
    uuids = [gpu["uuid"] for gpu in facts(pair, "get", "gpus")]
    assert (True, uuids[1:]) == (large["fits"], [piece["gpu"] for piece in large["placement"]["slices"]])
    assert "the fullest GPU that holds the request" in pair.command("explain", "service").stdout
    assert 0 != pair.command("run", "--gpu-request", ".5", "--gpu", "0", "--", "true").returncode
