"""`aliquot topo` beside an engine that is up."""

import json

from waiting import eventually

from .stage import Aliquot, end


def test_what_tenants_hold_is_not_free(aliquot_cli: Aliquot):
    """While an engine is up its GPUs are shown, wired as the profile says, with what its tenants left."""
    tenant = aliquot_cli.start(
        "run", "--emulate", "v100x4", "--gpu-request", ".4", "--gpu-limit", "1", "--", "sleep", "60"
    )

    def told() -> dict:
        shown = aliquot_cli("topo", "-o", "json")
        return json.loads(shown.stdout) if shown.returncode == 0 else {}

    try:
        eventually(lambda: told().get("fragments") == [0], "GPU 0 is taken in part")
        facts = told()
    finally:
        end(tenant)

    assert [600, 1000, 1000, 1000] == [gpu["free_milli"] for gpu in facts["gpus"]]
    assert ("NV2", "v100x4 (emulated, engine up)") == (facts["gpus"][0]["links"][3], facts["source"])
