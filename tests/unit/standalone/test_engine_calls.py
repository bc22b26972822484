"""A request on its way from the command line to the engine."""

import json
from collections.abc import Iterator
from dataclasses import fields
from fractions import Fraction
from typing import Any, get_args

import msgspec
import pytest

from aliquot.model.errors import UserError
from aliquot.model.quantities import Memory
from aliquot.model.requests import BadRequest, GpuRequest, Labels
from aliquot.standalone.wire import AnyCall, ApplyCall, LeaseCall, RunProcess, decode_call, encode_call

ESCAPES = "a\x1b[31mRED\x1b]0;pwn\x07\nGPU 9 fake"
REQUEST = {"request_milli": 300}
GIVEN = {"name": "a", "run": "a", "text": "", "needs": True, "request": REQUEST}


def calls() -> Iterator[tuple[type[msgspec.Struct], dict[str, Any]]]:
    """Every call of the protocol with the fields that it must have."""
    for kind in get_args(AnyCall):
        needed = {field.name: GIVEN[field.name] for field in msgspec.structs.fields(kind) if field.required}
        yield kind, {"verb": kind.__struct_config__.tag, **needed}


def texts() -> Iterator[dict[str, Any]]:
    """Every call, once for each text in it, with one there that a terminal or a list of names must not get."""
    for kind, call in calls():
        names = [field.name for field in msgspec.structs.fields(kind) if field.type is str]
        for wrong in (ESCAPES, "a" * 70_000):
            yield from ({**call, name: wrong} for name in names if kind is not ApplyCall)
            if "request" in kind.__struct_fields__:
                asked = {field.name: wrong for field in fields(GpuRequest) if field.type == "str"}
                asked["labels"] = {field.name: wrong for field in fields(Labels)}
                yield from ({**call, "request": {**REQUEST, name: text}} for name, text in asked.items())


@pytest.mark.parametrize(
    "request_",
    [
        GpuRequest(300),
        GpuRequest(300, 600, Memory(mib=4096), "V100|A10", "0", "lab", Labels("a", "b", "c"), "all", wake_us=5000),
        GpuRequest(2500, memory=Memory(part=Fraction(1, 4)), mixed=True),
        GpuRequest(1000, memory=Memory(part=Fraction(1, 10)), enforce="memory"),
    ],
)
def test_a_request_arrives_as_it_was_sent(request_: GpuRequest):
    """Every field of a request is the same on both sides of the engine's socket."""
    arrived = decode_call(encode_call(LeaseCall("a", request_, cpu_bind=2)))

    assert isinstance(arrived, LeaseCall)
    assert (request_, 2) == (arrived.request, arrived.cpu_bind)


@pytest.mark.parametrize(
    "line", [b"{}", b'{"verb":"status"}', b'{"verb":"lease","name":"a"}', b'{"verb":"delete"}', b'{"verb":"logs"}']
)
def test_a_call_without_what_its_verb_needs_is_refused(line: bytes):
    """Each verb has fields of its own; a call that lacks one, or whose verb does not exist, is not understood."""
    with pytest.raises(msgspec.MsgspecError):
        decode_call(line)


@pytest.mark.parametrize("part", ["1e99999999", "1/0", "half", "-1/2", "0.5", " 1/2", "9" * 19])
def test_a_part_of_memory_is_a_short_fraction(part: str):
    """A text whose value would take hours to compute, or is none, is refused at once."""
    line = b'{"verb":"lease","name":"a","request":{"request_milli":300,"memory":{"part":"%s"}}}' % part.encode()
    with pytest.raises(msgspec.MsgspecError):
        decode_call(line)


def test_a_call_asks_for_a_share_that_makes_sense():
    """What the command line would have refused is refused of a caller that speaks the protocol itself."""
    with pytest.raises(BadRequest, match="asks for nothing"):
        decode_call(b'{"verb":"lease","name":"a","request":{"request_milli":0}}')


@pytest.mark.parametrize("call", [call for _, call in calls()], ids=lambda call: call["verb"])
def test_every_call_is_understood_with_no_more_than_it_needs(call: dict[str, Any]):
    """What the tests below change is a call that is taken."""
    decode_call(json.dumps(call).encode())


@pytest.mark.parametrize("call", list(texts()), ids=lambda call: call["verb"])
def test_no_call_brings_control_characters_or_endless_names(call: dict[str, Any]):
    """Others see names, labels and vGPUs in their terminals; a caller that speaks the protocol itself is no exception.

    Manifests are texts of many lines, and read as such.
    """
    with pytest.raises(UserError) as refused:
        decode_call(json.dumps(call).encode())

    assert str(refused.value).isprintable()


@pytest.mark.parametrize("label", ["two words", "-a", "a/b", "a" * 64])
@pytest.mark.parametrize("name", ["affinity", "anti_affinity", "exclusion", "gpu_id"])
def test_a_call_brings_labels_as_the_command_takes_them(name: str, label: str):
    """Letters, digits and -_. up to 63 of them."""
    request = REQUEST | ({name: label} if name == "gpu_id" else {"labels": {name: label}})
    with pytest.raises(UserError, match="is not a label"):
        decode_call(json.dumps({"verb": "lease", "name": "a", "request": request}).encode())


@pytest.mark.parametrize(
    "wrong",
    [
        {"request": {**REQUEST, "memory": {}}},
        {"request": {**REQUEST, "memory": {"part": "3/2"}}},
        {"request": {**REQUEST, "wake_us": 5}},
        {"request": {**REQUEST, "park_after_s": -1}},
        {"request": {**REQUEST, "park_after_s": 1e300}},
        {"request": {"request_milli": 1000, "enforce": "never"}, "cpu_bind": 1},
        {"cpu_bind": -1},
        {"name": ""},
        {"name": "train/../../x"},
        {"name": "two words"},
    ],
)
@pytest.mark.parametrize("verb", ["lease", "share"])
def test_a_call_brings_quantities_as_the_command_takes_them(verb: str, wrong: dict[str, Any]):
    """What the command line refuses of a request, the engine does."""
    with pytest.raises(UserError):
        decode_call(json.dumps({"verb": verb, "name": "a", "request": REQUEST} | wrong).encode())


@pytest.mark.parametrize(
    "line",
    [
        b'{"verb":"logs","name":"a","cut":{"tail":-1}}',
        b'{"verb":"logs","name":"a","cut":{"since_s":-1}}',
        b'{"verb":"resize","name":"a","run":"a","memory":{}}',
    ],
)
def test_a_call_for_something_that_runs_brings_quantities_that_there_are(line: bytes):
    """Cuts of logs are not negative, and new memory is an amount."""
    with pytest.raises((UserError, msgspec.ValidationError)):
        decode_call(line)


def test_the_command_line_of_a_process_is_shown_in_one_line():
    """It may be another account's, and root sees it in a terminal."""
    assert RunProcess(1, "a\x1b[31m\nb").text == "a\\x1b[31m\\nb"
