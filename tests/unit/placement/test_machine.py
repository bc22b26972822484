"""One machine: its ledger stays in order, and a request finds room where there is some."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger import check

from aliquot.model.quantities import Memory
from aliquot.model.requests import BadRequest, Device, GpuRequest, Labels
from aliquot.placement.cluster import LedgerError
from aliquot.placement.machine import MachineLedger, NeverFits, NoRoom
from aliquot.placement.read_model import ledger_gpus


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


def free_milli(ledger: MachineLedger) -> list[int]:
    """What is left of each device."""
    return [gpu.free_milli for gpu in ledger_gpus(ledger.cluster, ledger.node)]


def test_the_fullest_gpu_with_room_is_taken():
    """GPU 0 is filled before GPU 1 is begun, and gaps are filled first."""
    machine = Machine(gpus=2)

    got = [machine.place("a", 600), machine.place("b", 600), machine.place("c", 400)]

    assert got == [["GPU-0"], ["GPU-1"], ["GPU-0"]]


def test_requests_on_a_gpu_never_exceed_one():
    """A request beyond what is free finds no room, and the message says what is missing where."""
    machine = Machine(gpus=1)
    machine.place("a", 600)

    with pytest.raises(NoRoom, match=r"GPU 0 has 0\.40 free, 0\.50 were asked.*aliquot get tenants"):
        machine.place("b", 500)


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


def test_memory_that_is_not_there_is_in_the_headline():
    """Where compute is free and memory is not, the headline says how much of it is."""
    machine = Machine(gpus=2)
    for number in range(2):
        machine.place(f"t{number}", 100, gpu=str(number), memory_mib=14336)

    with pytest.raises(NoRoom, match=r"needs 0\.50 of a GPU with 4\.0 GiB, at most .* GiB is free on those with"):
        machine.place("big", 500, memory_mib=4096)


def test_where_no_memory_is_free_the_headline_says_so():
    """Nothing is called at most 0: GPUs without compute are counted, and those with it have no memory."""
    machine = Machine(gpus=2)
    machine.place("full", 1000, gpu="0")
    machine.place("large", 100, gpu="1", memory_mib=16384)

    with pytest.raises(
        NoRoom, match=r"with 4\.0 GiB, 1 without any free; no memory is free on those with enough of it\."
    ):
        machine.place("big", 500, memory_mib=4096)


def test_a_wake_where_turns_do_not_keep_it_names_those_that_do():
    """A wake on an engine that takes turns otherwise never fits, and the message says how to start another."""
    machine = Machine(gpus=1)
    machine.ledger.cluster.measured.turns = {machine.ledger.node: "kubeshare"}

    with pytest.raises(NeverFits, match=r"wake is kept by fluid alone\. .*: aliquot up --turns fluid$"):
        machine.place("a", 300, wake_us=5000)


def test_memory_on_a_gpu_is_never_promised_twice():
    """Memory is reserved like compute."""
    machine = Machine(gpus=1)
    machine.place("a", 100, memory_mib=15000)

    with pytest.raises(NoRoom, match=r"1\.4 GiB free, 2\.0 GiB were asked"):
        machine.place("b", 100, memory_mib=2048)


def test_more_memory_than_any_device_has_never_fits():
    """Memory beyond the device is the asker's mistake, not a matter of waiting."""
    with pytest.raises(NeverFits, match=r"17\.0 GiB of GPU memory were asked, GPU 0 has 16\.0 GiB in all"):
        Machine(gpus=1).place("a", 100, memory_mib=17 * 1024)


def test_more_than_one_gpu_is_whole_ones_and_a_rest():
    """2.5 GPUs are two whole ones and half of a third, which may be a busy one."""
    machine = Machine(gpus=4)
    machine.place("small", 100)

    assert ["GPU-1", "GPU-2", "GPU-0"] == machine.place("big", 2500)
    assert [400, 0, 0, 1000] == free_milli(machine.ledger)


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


def test_a_name_is_given_once():
    """A second tenant by a taken name is refused."""
    machine = Machine(gpus=1)
    machine.place("a", 300)

    with pytest.raises(LedgerError, match="choose another name"):
        machine.place("a", 300)


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
