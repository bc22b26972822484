"""`/api/v1`: the facts as JSON, and the OpenAPI description, both made from the same table of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Generic, TypeVar, get_args

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from aliquot.lib.package import version
from aliquot.model.errors import UserError
from aliquot.status import (
    Event,
    Explanation,
    Gpu,
    GpuState,
    History,
    Hours,
    Node,
    Pool,
    QuotaLine,
    Recommendations,
    StatusSource,
    Timeline,
    TopologyFacts,
    Totals,
    Trial,
    Turns,
    Workload,
)
from aliquot.status.history import as_csv, dimensions, hours_range, range_of
from aliquot.status.rightsize import recommendations
from aliquot.status.source import totals
from aliquot.web.pages import NotHere, hours, trying
from aliquot.web.pages.gpus import find
from aliquot.web.pages.workloads import STATES

T = TypeVar("T")
Read = Callable[[StatusSource, Request], Any]
Door = Callable[[HTTPConnection], StatusSource]
"""The facts that the viewer who sent this request may see."""


class Listing(msgspec.Struct, Generic[T], frozen=True):
    """A part of a list: `total` counts what the filters left, `revision` grows whenever facts change."""

    items: list[T]
    total: int
    revision: int


class Problem(msgspec.Struct, frozen=True):
    """The reason for an error, in one sentence."""

    error: str


@dataclass(frozen=True)
class Operation:
    """One path, as its route is written: what reads it, its response type and its query parameters."""

    route: str
    summary: str
    answer: Any
    query: Sequence[str]
    read: Read

    @property
    def path(self) -> str:
        """The path as OpenAPI writes it."""
        return self.route.replace(":path", "")

    @property
    def name(self) -> str:
        """The name in the path; empty where there is none."""
        return self.path.partition("{")[2].partition("}")[0]


OPERATIONS: Final[list[Operation]] = []
_PAGING: Final = ("limit", "offset")
_NUMBERS: Final = {"limit": "integer", "offset": "integer", "since": "integer", "seconds": "number"}


def operation(route: str, summary: str, answer: Any, *query: str) -> Callable[[Read], Read]:
    """Add a function to the operations; it reads the facts for a request."""

    def add(read: Read) -> Read:
        OPERATIONS.append(Operation(route, summary, answer, query, read))
        return read

    return add


@operation("/totals", "Everything in one record", Totals)
def read_totals(facts: StatusSource, _request: Request) -> Totals:
    """The sums that the first page begins with."""
    return totals(facts)


@operation("/gpus", "GPUs with their tenants", Listing[Gpu], "node", "model", "state", *_PAGING)
def read_gpus(facts: StatusSource, request: Request) -> Listing[Gpu]:
    """The GPUs that have all of the words."""
    wanted = {name: word for name in ("node", "model", "state") if (word := request.query_params.get(name))}
    _require_word("state", wanted.get("state"), get_args(GpuState))
    gpus = [gpu for gpu in facts.gpus() if all(getattr(gpu, name) == word for name, word in wanted.items())]
    return _listing(facts, request, gpus)


@operation("/gpus/{uuid}/history", "The last hour of a GPU", History, "seconds")
def read_history(facts: StatusSource, request: Request) -> History:
    """The points of the last seconds, an hour of them if none are named."""
    uuid = request.path_params["uuid"]
    return _there(facts.history(uuid, _count(request, "seconds", 3600)), f"There is no GPU {uuid[:60]} here.")


@operation("/gpus/{uuid}/timeline", "Who used a GPU over a longer time", Timeline, "range")
def read_timeline(facts: StatusSource, request: Request) -> Timeline:
    """The steps of a range."""
    uuid = find(facts, request.path_params["uuid"]).uuid
    return facts.past.timeline(uuid, range_of(request.query_params.get("range", "")))


@operation("/gpus/{uuid}/turns", "The turns on a GPU in the last minute", Turns)
def read_turns(facts: StatusSource, request: Request) -> Turns:
    """The turns, where they are recorded."""
    uuid = find(facts, request.path_params["uuid"]).uuid
    return _there(facts.turns(uuid), f"The turns of GPU {uuid[:60]} are not known here.")


@operation("/hours", "GPU-hours by namespace, controller and model; as CSV: hours.csv", Hours, "range", "by")
def read_hours(facts: StatusSource, request: Request) -> Hours:
    """The sums of a range."""
    return hours.asked_hours(facts, request.query_params)


@operation("/recommendations", "What workloads ask for, used and should ask for", Recommendations, "range")
def read_recommendations(facts: StatusSource, request: Request) -> Recommendations:
    """From a range."""
    return recommendations(facts, hours_range(request.query_params.get("range", "")))


@operation("/workloads", "SharePods, pods and runs", Listing[Workload], "namespace", "state", *_PAGING)
def read_workloads(facts: StatusSource, request: Request) -> Listing[Workload]:
    """The workloads that have all of the words."""
    wanted = {name: word for name in ("namespace", "state") if (word := request.query_params.get(name))}
    workloads = facts.workloads()
    _require_word("state", wanted.get("state"), dict.fromkeys([*STATES, *(each.state for each in workloads)]))
    named = [each for each in workloads if all(getattr(each, name) == word for name, word in wanted.items())]
    return _listing(facts, request, named)


@operation("/workloads/{name:path}/explain", "Why a workload waits or stands where it does", Explanation)
def read_explanation(facts: StatusSource, request: Request) -> Explanation:
    """The sentences about one workload."""
    name = request.path_params["name"]
    return _there(facts.explain(name), f"There is no workload {name[:100]} here.")


@operation("/nodes", "Nodes with GPUs", Listing[Node], *_PAGING)
def read_nodes(facts: StatusSource, request: Request) -> Listing[Node]:
    """All of them."""
    return _listing(facts, request, facts.nodes())


@operation("/nodes/{name}/topology", "The links of a node", TopologyFacts)
def read_topology(facts: StatusSource, request: Request) -> TopologyFacts:
    """The links, where the node reports them."""
    name = request.path_params["name"]
    return _there(facts.topology(name), f"The links are not known of {name[:100]}.")


@operation("/pool", "vGPUs", Pool)
def read_pool(facts: StatusSource, _request: Request) -> Pool:
    """All of them."""
    return facts.pool()


@operation("/quota", "Quota and use by namespace and model", Listing[QuotaLine], *_PAGING)
def read_quota(facts: StatusSource, request: Request) -> Listing[QuotaLine]:
    """All of it."""
    return _listing(facts, request, facts.quota())


@operation("/events", "Recent events, oldest first", Listing[Event], "since", *_PAGING)
def read_events(facts: StatusSource, request: Request) -> Listing[Event]:
    """Those after a number."""
    return _listing(facts, request, facts.events(_count(request, "since", 0)))


@operation(
    "/try", "Where a request would be placed now; nothing is reserved", Trial,
    "request", "limit", "memory", "model", "gpu", "gpu_id", "affinity", "anti_affinity", "exclusion", "yaml",
)  # fmt: skip
def read_trial(facts: StatusSource, request: Request) -> Trial:
    """The answer for a request."""
    return facts.try_request(trying.request_of(request.query_params))


def routes(door: Door) -> list[Route]:
    """Every path of the API."""

    def hours_csv(request: Request) -> Response:
        try:
            by_line = hours.asked_hours(door(request), request.query_params)
            text = as_csv(by_line, dimensions(request.query_params.get("by", "")))
        except UserError as error:
            return problem(str(error), 400)
        headers = {"content-disposition": 'attachment; filename="gpu-hours.csv"'}
        return Response(text, media_type="text/csv", headers=headers)

    @cache
    def description() -> bytes:
        return msgspec.json.encode(document(version()))

    return [
        *(Route(f"/api/v1{each.route}", _endpoint(door, each)) for each in OPERATIONS),
        Route("/api/v1/hours.csv", hours_csv),
        Route("/api/v1/openapi.json", lambda _request: _json(description())),
    ]


def problem(text: str, status: int) -> Response:
    """The error response."""
    return _json(msgspec.json.encode(Problem(text)), status)


def _endpoint(door: Door, operation: Operation) -> Callable[[Request], Response]:
    """Answers with what an operation reads; a misspelt filter is refused, as without it the answer would be of all."""
    takes = operation.query

    def endpoint(request: Request) -> Response:
        for name in request.query_params:
            if name not in takes:
                allowed = f"it takes {', '.join(takes)}" if takes else "it takes none"
                return problem(f'{request.url.path[:100]} has no parameter "{name[:40]}"; {allowed}', 400)
        try:
            return _json(msgspec.json.encode(operation.read(door(request), request)))
        except UserError as error:
            return problem(str(error), 400)

    return endpoint


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


def _count(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise UserError(f'{name} "{text[:40]}" is not a whole number; write 0 or more')
    return int(text)


def _listing(facts: StatusSource, request: Request, items: Sequence[T]) -> Listing[T]:
    first = _count(request, "offset", 0)
    last = first + _count(request, "limit", len(items))
    return Listing(list(items[first:last]), len(items), facts.revision)


def _require_word(name: str, word: str | None, words: Iterable[str]) -> None:
    """Refuse a value that nothing can have.

    Raises:
        UserError: the filter's word is not one of these.
    """
    if word is not None and word not in words:
        raise UserError(f'{name} "{word[:40]}" is not one of {", ".join(words)}')


def _there(found: T | None, otherwise: str) -> T:
    if found is None:
        raise NotHere(otherwise)
    return found


def document(release: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    types = [operation.answer for operation in OPERATIONS]
    schemas, components = msgspec.json.schema_components([*types, Problem], ref_template="#/components/schemas/{name}")

    def response(text: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"description": text, "content": {"application/json": {"schema": schema}}}

    paths = {}
    for operation, schema in zip(OPERATIONS, schemas, strict=False):
        path = operation.path
        numbers = {} if path == "/try" else _NUMBERS  # a request's limit is a text such as 0.5
        parameters: list[dict[str, Any]] = [
            {"name": word, "in": "query", "schema": {"type": numbers.get(word, "string")}} for word in operation.query
        ]
        responses = {"200": response("The facts", schema), "400": response("The request is malformed", schemas[-1])}
        if operation.name:
            parameters.append({"name": operation.name, "in": "path", "required": True, "schema": {"type": "string"}})
            responses["404"] = response("Not found", schemas[-1])
        operation_id = path.strip("/").replace("/", "_").replace("{", "").replace("}", "")
        paths[f"/api/v1{path}"] = {
            "get": {
                "operationId": operation_id,
                "summary": operation.summary,
                "parameters": parameters,
                "responses": responses,
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Aliquot", "version": release, "description": "The tenants of each GPU. Read only."},
        "paths": paths,
        "components": {"schemas": components},
    }
