"""Timelines from a Prometheus: what is asked of it, and what is made of its answers."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from aliquot.status import Timeline
from aliquot.status.history import RANGES
from aliquot.web.history.keeping import LongHistory
from aliquot.web.history.prometheus import KEPT_S, TIMELINE_SOURCE, PrometheusPast

GPU = "GPU-0"
NOW_S = 1_800_000_000
DAY = RANGES["24h"]
LAB = {"namespace": "lab", "pod": "a", "container": "main"}
# By field, of a step of 300 s that was recorded whole: 0.5 promised, 0.25 used, 0.1 waited, 1 GiB, 2 of 4 windows kept.
WHOLE = {
    "recorded": 5, "promised": 2.5, "memory": 5 << 30, "there": 5, "used": 75, "waited": 30, "windows": 4, "kept": 2,
    "handovers": 7,
}  # fmt: skip


class FakePrometheus:
    """Answers query_range with `values(field, step)` for each step, None being no sample; counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.values: Callable[[str, int], float | None] = lambda field, step: WHOLE[field]
        self.body: bytes | None = None
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = {name: text[0] for name, text in parse_qs(urlsplit(self.path).query).items()}
                fake.asked.append({"page": urlsplit(self.path).path, **query})
                body = fake.body if fake.body is not None else json.dumps(fake._answer(query)).encode()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def _answer(self, query: dict[str, str]) -> dict[str, Any]:
        start, end, step = (int(query[name]) for name in ("start", "end", "step"))
        series = []
        for field in re.findall(r', "field", "(\w+)", "", ""\)', query["query"]):
            moments = enumerate(range(start, end + 1, step))
            values = [(at_s, self.values(field, n)) for n, at_s in moments]
            labels = {} if field == "recorded" else LAB
            told = [[at_s, str(value)] for at_s, value in values if value is not None]
            series.append({"metric": {**labels, "field": field}, "values": told})
        return {"status": "success", "data": {"resultType": "matrix", "result": series}}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    fake = FakePrometheus()
    yield fake
    fake.close()


def past(fake: FakePrometheus, **more: Any) -> PrometheusPast:
    """The past of a replica that has recorded nothing itself."""
    return PrometheusPast(fake.url, LongHistory(None), **{"clock": lambda: NOW_S + 7.0, **more})


def test_a_long_timeline_is_one_query_of_that_gpu(prometheus: FakePrometheus):
    """Everything of a GPU is asked at once, in steps that end with the last whole minute."""
    past(prometheus).timeline(GPU, DAY)
    (asked,) = prometheus.asked

    assert "/api/v1/query_range" == asked["page"]
    assert [NOW_S - 86_400 + 300, NOW_S, 300] == [int(asked[name]) for name in ("start", "end", "step")]
    assert {'{uuid="GPU-0"}'} == set(re.findall(r"{[^}]*}", asked["query"]))
    assert {"300s", "300s:60s"} == set(re.findall(r"\[([^]]*)\]", asked["query"]))


def test_steps_are_parts_of_the_recorded_time(prometheus: FakePrometheus):
    """Use and waiting are parts of the time that was recorded; what was lent is not known."""
    prometheus.values = lambda field, step: None if step == 3 else WHOLE[field]
    found = past(prometheus).timeline(GPU, DAY)
    (lane,) = found.lanes

    assert (288, TIMELINE_SOURCE, "") == (len(found.recorded), found.source, found.note)
    assert [1.0, 0.0] == [found.recorded[2], found.recorded[3]]
    assert ("lab/a/main", 0.5, 0.25, 0.1, None) == (
        lane.tenant, lane.promised[2], lane.used[2], lane.waited[2], lane.lent[2]
    )  # fmt: skip
    assert (1024.0, 50.0, 7) == (lane.memory_mib[2], lane.kept_percent[2], lane.handovers[2])
    assert {None} == {getattr(lane, field)[3] for field in ("promised", "used", "waited", "memory_mib", "handovers")}


def test_a_step_that_was_recorded_in_part_counts_for_that_part(prometheus: FakePrometheus):
    """Of a step of which two minutes of five were recorded the shares are of these two minutes."""
    part = {**WHOLE, "recorded": 2, "promised": 1.0, "used": 30}
    prometheus.values = lambda field, step: part[field]
    found = past(prometheus).timeline(GPU, DAY)

    assert (0.4, 0.5, 0.25) == (found.recorded[0], found.lanes[0].promised[0], found.lanes[0].used[0])


def test_tenants_have_the_names_of_the_ledger(prometheus: FakePrometheus):
    """A tenant whose name has a suffix in the ledger is found by it, as on the other pages."""
    names = {"lab/a/main": "lab/a/main@12"}
    found = past(prometheus, names=lambda gpu: names if gpu == GPU else {}).timeline(GPU, DAY)

    assert ["lab/a/main@12"] == [lane.tenant for lane in found.lanes]


def test_short_timelines_are_the_replicas_own(prometheus: FakePrometheus):
    """An hour is not asked of Prometheus: the replica has it by the minute."""
    assert "" == past(prometheus).timeline(GPU, RANGES["1h"]).source
    assert [] == prometheus.asked


def test_one_answer_serves_all_viewers_for_half_a_minute(prometheus: FakePrometheus):
    """The same timeline is asked again half a minute later only."""
    now_s = [NOW_S]
    one = past(prometheus, clock=lambda: now_s[0])
    for now_s[0] in (NOW_S, NOW_S + KEPT_S - 1, NOW_S + KEPT_S):
        one.timeline(GPU, DAY)

    assert 2 == len(prometheus.asked)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>", b"[]", b'{"data": null}', b'{"data": {"result": [{"metric": {}, "values": []}]}}',
        b'{"data": {"result": [{"metric": {"field": "recorded"}, "values": [[1, "x"]]}]}}',
    ],
)  # fmt: skip
def test_answers_in_another_form_are_no_answers(prometheus: FakePrometheus, body: bytes):
    """Whatever answers there, the page shows what the replica recorded and says why."""
    prometheus.body = body
    found = past(prometheus).timeline(GPU, DAY)

    assert (True, "") == (f"Prometheus at {prometheus.url} does not answer" in found.note, found.source)


def test_a_prometheus_that_fails_is_left_alone_for_a_while(prometheus: FakePrometheus):
    """After a failure no further query is sent for half a minute: a page of many GPUs does not wait for each."""
    prometheus.body = b"<html>"
    now_s = [NOW_S]
    one = past(prometheus, clock=lambda: now_s[0])
    notes = [one.timeline(f"GPU-{n}", DAY).note for n in range(8)]
    now_s[0] += KEPT_S
    prometheus.body = None
    found: Timeline = one.timeline(GPU, DAY)

    assert (1, 2) == (len(set(notes)), len(prometheus.asked))
    assert TIMELINE_SOURCE == found.source
