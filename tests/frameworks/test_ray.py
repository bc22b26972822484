"""Ray starts the workers of two actors as examples/ray says, and the arbiter measures what each gets."""

import json
import subprocess

import pytest
from conftest import HERE
from environments import python
from waiting import eventually

PROGRAM = HERE.parents[1] / "examples" / "ray" / "two_actors.py"
COMPUTES_S = 30


def usage(environment: dict[str, str]) -> dict[int, float]:
    """What the arbiter charged each actor over its window, by thousandths requested."""
    top = subprocess.run(["aliquot", "top", "-o", "json"], env=environment, check=True, capture_output=True)
    return {one["request_milli"]: one["usage"] or 0.0 for one in json.loads(top.stdout)["gpus"][0]["tenants"]}


@pytest.mark.timeout(600)
def test_two_actors_get_their_shares(machine: dict[str, str]):
    """Over a window actors with 0.3 and 0.7 are charged that within a point, and neither can allocate more memory."""
    due = pytest.approx({300: 0.3, 700: 0.7}, abs=0.01)
    pipe = subprocess.PIPE
    environment = machine | {"RAY_TMPDIR": machine["ALIQUOT_RUNTIME_DIR"]}
    command = [python("ray"), PROGRAM, str(COMPUTES_S)]
    run = subprocess.Popen(command, env=environment, text=True, stdout=pipe, stderr=pipe)
    try:
        eventually(lambda: usage(machine) == due, "each is charged its share of a window", timeout_s=120)
        out, errors = run.communicate(timeout=120)
    finally:
        run.terminate()
        run.wait(timeout=60)
    seen = {line["actor"]: line for line in map(json.loads, out.splitlines())}

    assert 0 == run.returncode, errors
    assert [4096, 8192] == [seen[name]["total_mib"] for name in ("small", "large")]
    assert all(line["largest_mib"] < line["total_mib"] for line in seen.values())
