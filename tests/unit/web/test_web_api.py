"""The JSON API and its description."""

import msgspec
import pytest
from made_up_facts import MadeUpFacts
from starlette.testclient import TestClient

from aliquot.status import Gpu, History, Totals, Trial, Workload
from aliquot.web.rest import OPERATIONS, Listing


def read(visitor: TestClient, path: str, kind: type):
    """An answer, read strictly as what it is said to be."""
    return msgspec.json.decode(visitor.get(f"/api/v1{path}").content, type=kind)


def test_gpus_are_told_whole(visitor: TestClient, facts: MadeUpFacts):
    """`gpus` gives every GPU as the facts have it."""
    answer = read(visitor, "/gpus", Listing[Gpu])

    assert list(facts.gpus()) == answer.items and len(facts.gpus()) == answer.total


def test_filters_leave_what_was_asked_for(visitor: TestClient, facts: MadeUpFacts):
    """Filters narrow by equality; `limit` and `offset` cut a part out while `total` counts all."""
    idle = [gpu.uuid for gpu in facts.gpus() if gpu.state == "idle"]
    answer = read(visitor, "/gpus?state=idle&limit=1&offset=1", Listing[Gpu])

    assert (idle[1:2], len(idle)) == ([gpu.uuid for gpu in answer.items], answer.total)
    assert all(w.state == "Pending" for w in read(visitor, "/workloads?state=Pending", Listing[Workload]).items)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/gpus?stat=idle", '/api/v1/gpus has no parameter "stat"; it takes node, model, state, limit, offset'),
        ("/totals?node=a", '/api/v1/totals has no parameter "node"; it takes none'),
        ("/gpus?state=busy", 'state "busy" is not one of whole, shared, idle'),
        ("/workloads?state=pending", 'state "pending" is not one of Pending, Running, Completed'),
    ],
)
def test_a_misspelt_filter_is_refused(visitor: TestClient, path, sentence):
    """A filter that would be ignored, or that nothing can pass, is answered with 400 and what is allowed."""
    answer = visitor.get(f"/api/v1{path}")

    assert (400, sentence) == (answer.status_code, answer.json()["error"])


def test_totals_are_the_sums_of_the_gpus(visitor: TestClient, facts: MadeUpFacts):
    """The one-line totals agree with the lists."""
    answer = read(visitor, "/totals", Totals)

    assert len(facts.gpus()) == answer.gpus == answer.whole + answer.shared + answer.idle
    assert sum(1000 - gpu.free_milli for gpu in facts.gpus()) == answer.promised_milli


def test_history_has_a_point_for_each_moment(visitor: TestClient, facts: MadeUpFacts):
    """Every series is as long as the time axis."""
    gpu = next(gpu for gpu in facts.gpus() if gpu.shares)
    answer = read(visitor, f"/gpus/{gpu.uuid}/history", History)

    assert 12 == len(answer.at_s)
    assert all(12 == len(series.usage_milli) == len(series.debt_ms) for series in answer.series)


def test_try_reads_texts_as_people_write_them(visitor: TestClient):
    """`try` takes the words of a SharePod's spec.gpu."""
    assert read(visitor, "/try?request=300m&limit=0.5&memory=25%25", Trial).fits


@pytest.mark.parametrize(
    ("path", "status"),
    [("/gpus?limit=x", 400), ("/try?request=0", 400), ("/gpus/none/history", 404), ("/workloads/a/b/explain", 404),
     ("/nodes/none/topology", 404), ("/nothing", 404), ("/events?since=-1", 400)],
)  # fmt: skip
def test_a_question_without_an_answer_gets_a_sentence(visitor: TestClient, path: str, status: int):
    """Errors are JSON with one sentence."""
    answer = visitor.get(f"/api/v1{path}")

    assert status == answer.status_code and answer.json()["error"]


def test_the_description_names_every_path(visitor: TestClient):
    """openapi.json has each operation, and every schema that it refers to."""
    document = visitor.get("/api/v1/openapi.json").json()
    referred = set(msgspec.json.encode(document).decode().split('"#/components/schemas/')[1:])

    assert [f"/api/v1{operation.path}" for operation in OPERATIONS] == list(document["paths"])
    assert {part.split('"')[0] for part in referred} <= set(document["components"]["schemas"])


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.path)
def test_what_is_described_is_answered(visitor: TestClient, facts: MadeUpFacts, operation):
    """Every path of the description answers with the type that stands there."""
    gpu = facts.gpus()[0]
    names = {"uuid": gpu.uuid, "name": gpu.node if "nodes" in operation.path else "batch/wait-0"}
    asked = {"request": "0.3"} if "request" in operation.query else {}
    answer = visitor.get(f"/api/v1{operation.path}".format(**names), params=asked)

    if operation.path != "/nodes/{name}/topology":  # made-up nodes have none
        assert 200 == answer.status_code
        msgspec.json.decode(answer.content, type=operation.answer, strict=True)
