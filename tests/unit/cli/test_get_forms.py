"""What `aliquot get -o` prints for one thing that is named, and for several."""

import json

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from aliquot.cli import get as command
from aliquot.cli import share as shares
from aliquot.cli.tables import tenant_table
from aliquot.model.ids import GpuUuid
from aliquot.standalone.client import NoEngine
from aliquot.standalone.wire import (
    EngineFacts,
    InfoCall,
    PodFacts,
    PodList,
    PodsCall,
    ShareFacts,
    ShareList,
    SharesCall,
    TenantFacts,
    TenantList,
    TenantsCall,
    TenantSlice,
)


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine with two SharePods and two tenants."""
    pods = [PodFacts(f"default/{name}", "Running", [0], ["GPU-0"], 300, 600, 2048, 0, 5.0) for name in "ab"]
    tenants = [TenantFacts(pod.name, "mount", "all", [], []) for pod in pods]
    answers = {PodsCall: PodList(pods), TenantsCall: TenantList(tenants)}
    answers[InfoCall] = EngineFacts(1, "/run", "", 1, [], 2)
    monkeypatch.setattr(command, "ask_engine", lambda call: answers[type(call)])


def printed(*words: str) -> str:
    done = CliRunner().invoke(command.get, words, catch_exceptions=False)
    assert 0 == done.exit_code, done.output
    return done.stdout


def in_yaml(*words: str) -> list[str]:
    """The names in what `-o yaml` prints: SharePods are documents with a status, others one document."""
    (first, *more) = yaml.safe_load_all(printed(*words, "-o", "yaml"))
    listed = first if isinstance(first, list) else [first, *more]
    return [each.get("status", each)["name"] for each in listed]


@pytest.mark.parametrize("words", [("pod", "a"), ("sharepod/a",), ("tenants", "a")])
def test_one_name_gives_the_object(words: tuple[str, ...]):
    """`get KIND NAME -o json` prints that object and no list, and so does yaml, as kubectl has it."""
    assert "default/a" == json.loads(printed(*words, "-o", "json"))["name"]
    assert ["default/a"] == in_yaml(*words)
    assert "default/a" == printed(*words, "-o", "jsonpath={.name}")


@pytest.mark.parametrize("words", [(), ("pods",), ("pods", "a", "b"), ("tenants",)])
def test_several_names_or_none_give_a_list(words: tuple[str, ...]):
    """Without a name, and with several, `-o json` prints a list, which templates have as `.items`."""
    assert ["default/a", "default/b"] == [each["name"] for each in json.loads(printed(*words, "-o", "json"))]
    assert ["default/a", "default/b"] == in_yaml(*words)
    assert "default/a default/b" == printed(*words, "-o", "jsonpath={.items[*].name}")


def test_columns_of_one_name_are_its_row():
    """Columns are a table of one row for one name."""
    assert ["NAME", "default/b"] == printed("pod", "b", "-o", "custom-columns=NAME:.name").split()


@pytest.mark.parametrize("form", ["jsonpath={.items[*].metadata.name}", "custom-columns=NAME:.metadata.name"])
def test_paths_that_lead_nowhere_are_said_to(form: str):
    """A template or columns of which no path leads to anything succeed, and stderr names the fields that exist."""
    done = CliRunner().invoke(command.get, ["pods", "-o", form], catch_exceptions=False)

    assert (0, 1) == (done.exit_code, done.stderr.count("\n"))
    assert "nothing matches" in done.stderr and " has name, phase, gpus, " in done.stderr


@pytest.mark.parametrize("form", ["jsonpath={.items[*].message}", "jsonpath={.items[?(@.phase=='Failed')].name}"])
def test_an_empty_answer_is_no_mistake(form: str):
    """Fields that are empty, and filters that nothing passes, print nothing on stderr."""
    done = CliRunner().invoke(command.get, ["pods", "-o", form], catch_exceptions=False)

    assert (0, "") == (done.exit_code, done.stderr)


def test_names_that_exist_are_printed_beside_one_that_does_not():
    """Of several names those that exist are printed, and the error for the other one follows."""
    done = CliRunner().invoke(command.get, ["pods", "b", "nosuch", "-o", "name"])

    assert "sharepod/b\n" == done.stdout
    assert 'there is no sharepod "nosuch"; there is default/a, default/b' == str(done.exception)


@pytest.mark.parametrize("form", ["text", "wide", "custom-columns=NAME:.name"])
def test_tables_without_headers(form: str):
    """--no-headers leaves out the first line of a table and nothing else."""
    table = printed("pods", "-o", form).splitlines()

    assert table[1:] == printed("pods", "--no-headers", "-o", form).splitlines()


@pytest.mark.parametrize("wide", [False, True])
def test_a_tenant_is_one_row_with_the_numbers_of_its_gpus(wide: bool):
    """A tenant on several GPUs is listed once, by the GPUs' numbers; their UUIDs are in the wide list."""
    uuids = [f"GPU-{n}8f7e6d5c-0000-0000-0000-000000000000" for n in range(2)]
    pieces = [TenantSlice(GpuUuid(uuid), 1000, 1000, 1024) for uuid in uuids]
    tenant = TenantFacts("lab/big", "", "all", [3, 5], pieces)
    (head, row) = tenant_table([tenant], wide=wide)

    assert ["lab/big", "3,5", "2.00", "2.00", "2.0 GiB"] == row[:5]
    assert wide == (uuids[0] in row[-1]) and len(head) == len(row)


def test_lists_of_tenants_say_why_programs_were_ended(monkeypatch: pytest.MonkeyPatch):
    """Those of tenants and of shares have the sentence below the table, and in a field for programs."""
    ended = TenantFacts("train", "container", "all", [0], [], why_ended="it held 10.0 GiB")
    answers = {TenantsCall: TenantList([ended]), SharesCall: ShareList([ShareFacts(ended, "", "", [])])}
    for module in (command, shares):
        monkeypatch.setattr(module, "ask_engine", lambda call: answers[type(call)])
    listed = CliRunner().invoke(shares.share, ["list"]).stdout

    assert "the programs of train were ended: it held 10.0 GiB" == printed("tenants").splitlines()[-1]
    assert printed("tenants") == listed
    assert "it held 10.0 GiB" == printed("tenants", "train", "-o", "jsonpath={.why_ended}")


def test_a_watch_begins_with_one_table(monkeypatch: pytest.MonkeyPatch):
    """What is there when a watch begins is one table; a column of later rows is never narrower than it was there."""
    short, long = (
        PodFacts(f"default/{name}", "Running", [0], ["GPU-0"], 300, 600, 2048, 0, 5.0) for name in ("a", "a-long-name")
    )
    changed = msgspec.structs.replace(short, phase="Failed")
    replies = iter([PodList([]), PodList([short, long]), PodList([changed, long])])  # the first is asked what was lost

    def ask(call: PodsCall) -> PodList:
        found = next(replies, None)
        if found is None:
            raise NoEngine("none")
        return found

    monkeypatch.setattr(command, "WATCH_EVERY_S", 0.0)
    monkeypatch.setattr(command, "ask_engine", ask)

    lines = printed("pods", "-w").splitlines()

    assert ["NAME", "a", "a-long-name", "a"] == [line.split()[0] for line in lines]
    assert 1 == len(
        {line.index(word) for line, word in zip(lines, ("STATUS", "Running", "Running", "Error"), strict=True)}
    )


@pytest.mark.parametrize("words", [("pods", "nb"), ("pod/nb",), ("tenants", "nb")])
def test_an_account_leaves_its_own_part_of_a_name_out(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]):
    """At the machine's engine `nb` is the account's own, and another's is named in full."""
    pods = [PodFacts(f"{who}/nb", "Running", [0], ["GPU-0"], 300, 600, 2048, 0, 5.0) for who in ("ann", "bob")]
    tenants = [TenantFacts(pod.name, "mount", "all", [], []) for pod in pods]
    facts = EngineFacts(1, "/run", "", 1, [], 2, namespace="bob")
    answers = {PodsCall: PodList(pods), TenantsCall: TenantList(tenants), InfoCall: facts}
    monkeypatch.setattr(command, "ask_engine", lambda call: answers[type(call)])

    assert "bob/nb" == printed(*words, "-o", "jsonpath={.name}")
    assert "ann/nb" == printed(words[0].partition("/")[0], "ann/nb", "-o", "jsonpath={.name}")
