"""Whatever a user, a file or a peer gives is understood, or refused in one sentence within a second of computing."""

import contextlib
import hashlib
import io
import json
import os
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up_facts import MadeUpFacts
from starlette.testclient import TestClient
from work import counted

from aliquot.arbiter.journal import Journal
from aliquot.cli.main import main
from aliquot.cli.topo import read_used
from aliquot.driver.emulation import parse_spec
from aliquot.driver.policies import maker
from aliquot.kube import names
from aliquot.kube.inventory import read_inventory
from aliquot.kube.manifest import read_sharepods
from aliquot.kube.plan import read_plan
from aliquot.model.errors import SENTENCE, AliquotError
from aliquot.model.quantities import parse_memory, parse_milli
from aliquot.node.allocation.checkpoint import read_checkpoint
from aliquot.node.settings import node_settings
from aliquot.placement.policy import BadMemory, unpack
from aliquot.scheduler.agents import UnreadableReport, read_report
from aliquot.scheduler.extender.wire import Args, BadMessage
from aliquot.scheduler.extender.wire import read as read_body
from aliquot.topology.machine import parse_topo
from aliquot.web.app import dashboard, everyone
from aliquot_lab.sim.clusters import read_cluster
from aliquot_lab.sim.policies import parsed

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
REFUSED = (AliquotError, BadMessage, UnreadableReport, BadMemory)
MAX_CALLS = 5_000_000  # some 50 for each byte of the longest text here

DEEP = 20_000
LONG = "9" * 5000
ODD = (
    *("", " ", "\n", "\0", "-", "--", "²", "٣", "½", "∞", "nan", "inf", "-inf", "1e400", "1e-400", "-0", "0x10", "1_0"),
    *(LONG, f"{LONG}Gi", f"0.{LONG}", f"1e{LONG}", f"v100x{LONG}", "v100x²", f"v100*{LONG}", f"{LONG}=1", f"0={LONG}"),
    *("x" * 100_000, "[" * DEEP, "{a: " * DEEP, '{"a":' * DEEP, "a,b," * 10_000),
    *("\ud800", "&a [*a, *a]", "!!python/x y"),
    *("GPU0 GPU1\nGPU0 X NV9999999999\nGPU1 NV1 X", "GPU0\tGPU1\nGPU0\tX", "../../etc/passwd", "/dev/null", "."),
)
texts = st.sampled_from(ODD) | st.text(max_size=40) | st.from_regex(r"[0-9.eE+-]{1,12}(Gi|Mi|G|m|%|x)?", fullmatch=True)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
trees = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))


def check(sentence: str) -> None:
    """One line that a terminal only shows, short enough to be read."""
    assert sentence.isprintable() and sentence.strip(), sentence
    assert len(sentence) <= SENTENCE, len(sentence)


def outcome(run: Callable[[], Any]) -> None:
    """Run it; whatever it refuses it refuses in one sentence, and soon."""
    with counted() as calls:
        try:
            run()
        except REFUSED as error:
            check(str(error))
    assert calls.count < MAX_CALLS


def _policies(text: str) -> None:
    parsed(text)


def _learned(text: str) -> None:
    policy = maker("aliquot")()
    head = {"version": 1, "policy": policy.name, "sha256": hashlib.sha256(text.encode(errors="replace")).hexdigest()}
    unpack(policy, f"{json.dumps(head)}\n{text}\n")
    unpack(policy, text)


TEXTS: dict[str, Callable[[str], Any]] = {
    "a share": parse_milli,
    "an amount of memory": parse_memory,
    "an emulated machine": parse_spec,
    "the GPUs in use": lambda text: read_used(text, 8),
    "nodes of the simulator": read_cluster,
    "placement policies": _policies,
    "a printed topology": parse_topo,
    "SharePods in YAML": read_sharepods,
    "what placement learned": _learned,
    "a plan in an annotation": lambda text: read_plan({names.PLAN: text}),
    "a node's GPUs in an annotation": lambda text: read_inventory({names.GPUS: text}),
}


@pytest.mark.parametrize("name", TEXTS)
@SETTINGS
@given(text=texts)
def test_a_text_is_understood_or_refused_in_a_sentence(name: str, text: str):
    """A value of the command line or a file."""
    outcome(lambda: TEXTS[name](text))


@SETTINGS
@given(fields=st.dictionaries(st.sampled_from(["gpu", "template", "selector", "nodeName"]) | texts, trees, max_size=4))
def test_a_sharepod_of_any_fields_is_understood_or_refused(fields: dict[str, Any]):
    """Any value in any field of a SharePod."""
    document = {"apiVersion": "aliquot.dev/v1alpha1", "kind": "SharePod", "metadata": {"name": "a"}, "spec": fields}
    outcome(lambda: read_sharepods(json.dumps(document)))


BODIES: dict[str, Callable[[bytes], Any]] = {
    "a message of kube-scheduler": lambda body: read_body(body, Args),
    "an answer of an agent": read_report,
}
bodies = (
    st.binary(max_size=60)
    | trees.map(lambda tree: json.dumps(tree).encode())
    | texts.map(lambda text: text.encode(errors="replace"))
)


@pytest.mark.parametrize("name", BODIES)
@SETTINGS
@given(body=bodies)
def test_a_body_is_understood_or_refused_in_a_sentence(name: str, body: bytes):
    """What comes over HTTP."""
    outcome(lambda: BODIES[name](body))


def _checkpoint(path: Path) -> None:
    assert len(read_checkpoint(path)[1].splitlines()) <= 1


def _journal(path: Path) -> None:
    journal = Journal(path, 4096)
    try:
        journal.read()
    finally:
        journal.close()


STATE: dict[str, Callable[[Path], Any]] = {"the agent's checkpoint": _checkpoint, "the arbiter's journal": _journal}
FILES = STATE | {
    "the agent's settings": lambda path: node_settings(path, {}),
    "ledger of the simulator": lambda path: read_cluster(str(path.rename(path.with_suffix(".json")))),
}


def _framed(body: bytes) -> bytes:
    """The same with the checksums of a checkpoint and of a journal, so that more than the checksum is looked at."""
    line = body.replace(b"\n", b" ")
    head = json.dumps({"version": 1, "sha256": hashlib.sha256(line).hexdigest()}).encode()
    return head + b"\n" + line + b"\n%08x %s\n" % (zlib.crc32(line), line)


@pytest.mark.parametrize("name", FILES)
@SETTINGS
@given(body=bodies, framed=st.booleans())
def test_a_file_is_understood_or_refused_in_a_sentence(name: str, tmp_path: Path, body: bytes, framed: bool):
    """What was left on the disk, damaged or made by somebody else."""
    path = tmp_path / "file"
    path.write_bytes(_framed(body) if framed else body)
    outcome(lambda: FILES[name](path))


@pytest.mark.parametrize("name", STATE)
def test_a_pipe_in_place_of_a_file_holds_up_no_program(name: str, tmp_path: Path):
    """A FIFO under the name of a file is refused or passed over, never waited for."""
    path = tmp_path / "file"
    os.mkfifo(path)
    with contextlib.suppress(OSError):
        STATE[name](path)


COMMANDS = (
    ("run", "--gpu-request", "{}", "--", "true"),
    ("run", "--gpu-mem", "{}", "--emulate", "none", "--", "true"),
    ("explain", "--gpu-request", "{}", "--gpu-mem", "1x"),
    ("topo", "--emulate", "{}"),
    ("topo", "--emulate", "v100x4", "--used", "{}"),
    ("topo", "--emulate", "v100x4", "--gpus", "{}"),
    ("sim", "run", "--nodes", "{}"),
    ("convert", "-f", "{}"),
    ("apply", "-f", "{}"),
    ("delete", "-f", "{}"),
    ("{}",),
)


def _as_argument(text: str) -> str:
    """As the kernel hands it over: without NUL, and what is no UTF-8 as Python keeps it."""
    return os.fsdecode(text.replace("\0", "").encode(errors="surrogatepass"))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@SETTINGS
@given(text=texts.map(_as_argument))
def test_a_command_line_is_understood_or_refused_in_a_sentence(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
):
    """Any text where a command expects a value; there is no engine here that could do more than refuse."""
    monkeypatch.setenv("ALIQUOT_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["aliquot", *(text if word == "{}" else word for word in words)])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    errors = io.StringIO()
    with (
        counted() as calls,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(errors),
        pytest.raises(SystemExit) as end,
    ):
        main()
    assert calls.count < MAX_CALLS
    if end.value.code:
        check(errors.getvalue().removesuffix("\n"))


@pytest.fixture(scope="module")
def visitor() -> TestClient:
    """Asks the pages of a made-up cluster."""
    return TestClient(dashboard(everyone(MadeUpFacts(nodes=2, gpus=2))), base_url="http://localhost:8765")


@pytest.mark.parametrize("field", ["request", "limit", "memory", "gpus", "model", "name", "minutes", "sort"])
@SETTINGS
@given(text=texts)
def test_a_question_to_the_pages_is_answered_or_refused(visitor: TestClient, field: str, text: str):
    """Whatever stands in a query, the answer is no internal error."""
    for path in ("/api/v1/try", "/api/v1/gpus", "/", "/gpus"):
        answer = visitor.get(path, params={field: text.encode(errors="replace")[:4000]})
        assert answer.status_code < 500
