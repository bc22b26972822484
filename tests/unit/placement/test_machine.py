"""One machine: its ledger stays in order, and a request finds room where there is some."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger import check

from aliquot.model.ids import GpuUuid, TenantName
from aliquot.model.quantities import Memory
from aliquot.model.requests import BadRequest, Device, GpuRequest, Labels, Plan, Slice
from aliquot.placement.machine import MachineLedger, NeverFits, NoRoom


class Machine:
    """A machine's ledger and short ways to fill it."""

    def __init__(self, gpus: int, memory_mib: int = 16384) -> None:
        self.ledger = MachineLedger(Device(i, f"GPU-{i}", "Tesla V100-SXM2", memory_mib) for i in range(gpus))

    def place(self, name: str, milli: int, **fields) -> list[str]:
        """Place and reserve; the GPUs it got."""
        memory = fields.pop("memory_mib", None)
        labels = Labels(**{k: fields.pop(k) for k in ("affinity", "anti_affinity", "exclusion") if k in fields})
        request = GpuRequest(milli, memory=Memory(mib=memory) if memory else None, labels=labels, **fields)
        plan = self.ledger.plan(request)
        self.ledger.reserve(name, plan, request)
        check(self.ledger.cluster)
        return list(plan.uuids)


GIB4 = {"memory_mib": 4096}


@pytest.mark.parametrize(
    ("gpus", "held", "milli", "fields", "says"),
    [
        pytest.param(
            1, [(600, {})], 500, {}, r"GPU 0 has 0\.40 free, 0\.50 were asked.*aliquot get tenants", id="compute",
        ),
        pytest.param(
            2, [(100, {"gpu": "0", "memory_mib": 14336}), (100, {"gpu": "1", "memory_mib": 14336})], 500, GIB4,
            r"needs 0\.50 of a GPU with 4\.0 GiB, at most .* GiB is free on those with", id="memory, not compute",
        ),
        pytest.param(
            2, [(1000, {"gpu": "0"}), (100, {"gpu": "1", "memory_mib": 16384})], 500, GIB4,
            r"with 4\.0 GiB, 1 without any free; no memory is free on those with enough of it\.", id="no memory at all",
        ),
        pytest.param(
            1, [], 100, {"memory_mib": 17 * 1024}, r"17\.0 GiB of GPU memory were asked, GPU 0 has 16\.0 GiB in all",
            id="more than any device has",
        ),
        pytest.param(
            1, [], 100, {"memory_limit": Memory(mib=17 * 1024)}, r"17\.0 GiB as --gpu-mem-limit .*, GPU 0 has 16",
            id="a memory limit that no device has",
        ),
        pytest.param(
            1, [], 500, {"memory_limit": Memory(mib=4096)}, r"4\.0 GiB as --gpu-mem-limit .* are below the 8\.0 GiB",
            id="a memory limit below the request's part",
        ),
        pytest.param(
            1, [], 100, {"memory_mib": 8192, "memory_limit": Memory(part=Fraction(1, 4))}, r"25% .* below the 8\.0",
            id="a part of the memory below the guarantee",
        ),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_with_its_place(gpus: int, held: list, milli: int, fields: dict, says: str):
    """A request beyond what is free finds no room, and one beyond the device never fits."""
    machine = Machine(gpus=gpus)
    for number, (taken, how) in enumerate(held):
        machine.place(f"t{number}", taken, **how)

    with pytest.raises(NoRoom if held else NeverFits, match=says):
        machine.place("b", milli, **fields)


@pytest.mark.parametrize(
    ("gpus", "held", "asked", "says"),
    [
        (8, [1000] * 7, 4000, "needs 4 whole GPUs, 1 is free (GPU 7)"),
        (4, [1000] * 2, 4000, "needs 4 whole GPUs, 2 are free (GPU 2 and GPU 3)"),
        (2, [700, 700], 1000, "needs 1 whole GPU, none is free"),
        (3, [700, 600, 800], 500, "needs 0.50 of a GPU, at most 0.40 is free (GPU 1)"),
        (3, [1000] * 3, 500, "needs 0.50 of a GPU, no GPU has any free"),
    ],
)
def test_what_waits_has_one_headline(gpus: int, held: list[int], asked: int, says: str):
    """A refusal says what is needed and how much of it is free where, however many GPUs there are; explain too."""
    machine = Machine(gpus=gpus)
    for number, milli in enumerate(held):
        machine.place(f"t{number}", milli, gpu=str(number))

    with pytest.raises(NoRoom) as refused:
        machine.place("big", asked)
    assert f"{says}. See who holds the rest: aliquot get tenants" == str(refused.value)
    assert f"It {says}." in machine.ledger.explain(GpuRequest(asked)).headline("big")


def test_a_wake_where_turns_do_not_keep_it_names_those_that_do():
    """A wake on an engine that takes turns otherwise never fits, and the message says how to start another."""
    machine = Machine(gpus=1)
    machine.ledger.cluster.measured.turns = {machine.ledger.node: "kubeshare"}

    with pytest.raises(NeverFits, match=r"wake is kept by fluid alone\. .*: aliquot up --turns fluid$"):
        machine.place("a", 300, wake_us=5000)


@pytest.mark.parametrize(("milli", "hint"), [(30_000, "for 30 % of one GPU write 0.3 or 30%"), (4_000, "")])
def test_a_number_that_may_be_a_percentage_has_a_hint(milli: int, hint: str):
    """A request of 30 GPUs on a machine of one is told how 30 % of a GPU is written; one of 4 GPUs is not."""
    with pytest.raises(NeverFits) as refused:
        Machine(gpus=1).place("x", milli)

    assert str(refused.value).endswith(f"ask for at most 1.0{', or ' if hint else ''}{hint}")


def test_a_gpu_can_be_named_by_index_or_uuid():
    """A named GPU is taken or nothing is; an unknown name lists the known."""
    machine = Machine(gpus=2)

    assert [["GPU-1"], ["GPU-1"]] == [machine.place("a", 100, gpu="1"), machine.place("b", 100, gpu="GPU-1")]
    with pytest.raises(NeverFits, match='no GPU "7" here; there are GPU 0, 1'):
        machine.place("c", 100, gpu="7")


def test_a_model_is_known_by_its_words():
    """A model is asked by any of its words; part of a word is another model, and an unknown one lists the known."""
    machine = Machine(gpus=1)

    assert ["GPU-0"] == machine.place("a", 100, model="v100")
    for other in ("V10", "A100"):
        with pytest.raises(NeverFits, match=f'no GPU of model "{other}" here; there is Tesla V100-SXM2'):
            machine.place("b", 100, model=other)


def test_a_label_of_one_device_is_not_for_several():
    """An affinity label and a vGPU's name mean one device, so a request for more than one GPU may not carry them."""
    with pytest.raises(BadRequest, match=r'affinity "x" means one device, 1\.50 GPUs are on 2'):
        Machine(gpus=2).place("a", 1500, affinity="x")
    with pytest.raises(BadRequest, match='vGPU "v" means one device'):
        Machine(gpus=2).place("a", 2000, gpu_id="v")


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 2500), st.integers(1, 20000)), max_size=40))
def test_no_sequence_of_arrivals_and_departures_breaks_the_ledger(steps):
    """After any history nothing is over-promised, and plans and residents agree."""
    machine = Machine(gpus=3)
    for name, milli, memory_mib in steps:
        machine.ledger.release(str(name))
        try:
            machine.place(str(name), milli, memory_mib=memory_mib)
        except (NoRoom, NeverFits):
            continue

    check(machine.ledger.cluster)


def test_the_fewest_moves_that_make_room_are_found():
    """A whole GPU takes two moves of what is movable, to where there is room; for two whole GPUs there are none."""
    ledger = MachineLedger([Device(n, GpuUuid(f"GPU-{n}"), "V100", 16_384) for n in range(3)])
    for name, gpu in (("a", 0), ("b", 0), ("c", 1), ("d", 1), ("e", 2), ("f", 2)):
        request = GpuRequest(300, memory=Memory(mib=2048), movable=name in "acd")
        ledger.reserve(TenantName(name), Plan((Slice(GpuUuid(f"GPU-{gpu}"), 300, 1000, 2048),)), request)

    assert [("c", 0), ("d", 2)] == ledger.moves_for(GpuRequest(1000))
    assert [("a", 1)] == ledger.moves_for(GpuRequest(650, memory=Memory(mib=1024)))
    assert [] == ledger.moves_for(GpuRequest(2000))
