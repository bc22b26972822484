"""The turns of a cluster's GPUs, from the pages of a node's agent."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from aliquot.arbiter.records import GpuTurns, HeldTurn, turns_of
from aliquot.driver.gpu import Gpu as Card
from aliquot.node.display.facts import Sources
from aliquot.node.display.server import application, serving
from aliquot.node.machine import Machine
from aliquot.scheduler.agents import AgentThread
from aliquot.status.nodes import Owner

CARD = "GPU-00000000-0000-0000-0000-000000000000"
S = 1_000_000_000
HELD = GpuTurns(100 * S, 70 * S, [HeldTurn("one", 80 * S, 85 * S), HeldTurn("two", 85 * S, 100 * S)])


def asked(turns: GpuTurns | None) -> Mapping[str, GpuTurns]:
    """What a scheduler hears of a node whose arbiter has these turns."""
    card = Card(0, CARD, "Tesla V100", 16384, "570", [], ["X"])
    machine = Machine((card,), Path("/libcuda.so.1"), Path("/libnvidia-ml.so.1"))
    owners = {"one": Owner("lab", "train", "main"), "two": Owner("web", "serve", "main")}
    sources = Sources("node-a", machine, lambda: None, lambda: owners, turns=lambda gpu: turns)

    async def main() -> Mapping[str, GpuTurns]:
        async with serving(application(sources), 0) as port:
            asking = AgentThread()
            try:
                asking.agents.places = {"node-a": f"http://127.0.0.1:{port}/node.json"}
                return await asyncio.to_thread(asking.turns, "node-a")
            finally:
                await asyncio.to_thread(asking.close)

    return asyncio.run(main())


def test_an_agent_says_which_container_held_a_gpu():
    """The agent's page has the turns of the last minute of each GPU, with namespace, pod and container."""
    found = asked(HELD)

    assert [("lab/train/main", 80 * S, 85 * S), ("web/serve/main", 85 * S, 100 * S)] == [
        (turn.tenant, turn.began_ns, turn.ended_ns) for turn in found[CARD].turns
    ]
    assert (100 * S, 70 * S) == (found[CARD].now_ns, found[CARD].known_ns)


def test_of_a_node_whose_arbiter_is_away_no_turns_are_known():
    """Without an arbiter there are no turns, and none of a node without an agent."""
    assert {} == asked(None)
    asking = AgentThread()
    assert {} == asking.turns("elsewhere")
    asking.close()


def test_turns_are_those_of_the_ledgers_tenants():
    """Names are the ledger's; a tenant that it does not have on the GPU has none."""
    now_s = time.time()
    turns = turns_of(CARD, HELD, now_s, {"one": "lab/train/main#2"})

    assert ["lab/train/main#2", "(unknown)"] == [turn.tenant for turn in turns.turns]
    assert [pytest.approx(now_s - 20), pytest.approx(now_s - 15)] == [turn.since_s for turn in turns.turns]
    assert pytest.approx(now_s - 30) == turns.known_s


def test_a_node_cannot_say_turns_of_another_time():
    """Whatever a node says, turns are within the last minute; those that end before they begin are left out."""
    now_s = time.time()
    held = GpuTurns(100 * S, -(10**30), [HeldTurn("a", -(10**30), 10**30), HeldTurn("a", 99 * S, 90 * S)])
    turns = turns_of(CARD, held, now_s)

    assert [(pytest.approx(now_s - 60), pytest.approx(now_s))] == [(turn.since_s, turn.until_s) for turn in turns.turns]
    assert pytest.approx(now_s - 60) == turns.known_s
