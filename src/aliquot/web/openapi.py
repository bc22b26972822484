"""The OpenAPI description of the API, generated from its response records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from aliquot.status import (
    Event,
    Explanation,
    Gpu,
    History,
    Hours,
    Node,
    Pool,
    QuotaLine,
    Timeline,
    TopologyFacts,
    Totals,
    Trial,
    Turns,
    Workload,
)

T = TypeVar("T")


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
    """One path: its response type and its query parameters."""

    path: str
    summary: str
    answer: Any
    query: Sequence[str] = ()
    name: str = ""


_PAGING = ("limit", "offset")
OPERATIONS = (
    Operation("/totals", "Everything in one record", Totals),
    Operation("/gpus", "GPUs with their tenants", Listing[Gpu], ("node", "model", "state", *_PAGING)),
    Operation("/gpus/{uuid}/history", "The last hour of a GPU", History, ("seconds",), "uuid"),
    Operation("/gpus/{uuid}/timeline", "Who used a GPU over a longer time", Timeline, ("range",), "uuid"),
    Operation("/gpus/{uuid}/turns", "The turns on a GPU in the last minute", Turns, (), "uuid"),
    Operation("/hours", "GPU-hours by namespace, controller and model; as CSV: hours.csv", Hours, ("range", "by")),
    Operation("/workloads", "SharePods, pods and runs", Listing[Workload], ("namespace", "state", *_PAGING)),
    Operation("/workloads/{name}/explain", "Why a workload waits or stands where it does", Explanation, (), "name"),
    Operation("/nodes", "Nodes with GPUs", Listing[Node], _PAGING),
    Operation("/nodes/{name}/topology", "The links of a node", TopologyFacts, (), "name"),
    Operation("/pool", "vGPUs", Pool),
    Operation("/quota", "Quota and use by namespace and model", Listing[QuotaLine], _PAGING),
    Operation("/events", "Recent events, oldest first", Listing[Event], ("since", *_PAGING)),
    Operation(
        "/try",
        "Where a request would be placed now; nothing is reserved",
        Trial,
        ("request", "limit", "memory", "model", "gpu", "gpu_id", "affinity", "anti_affinity", "exclusion", "yaml"),
    ),
)
_NUMBERS = {"limit": "integer", "offset": "integer", "since": "integer", "seconds": "number"}


def document(version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    types = [operation.answer for operation in OPERATIONS]
    schemas, components = msgspec.json.schema_components([*types, Problem], ref_template="#/components/schemas/{name}")
    paths = {
        f"/api/v1{operation.path}": {"get": _described(operation, schema, schemas[-1])}
        for operation, schema in zip(OPERATIONS, schemas, strict=False)
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Aliquot", "version": version, "description": "The tenants of each GPU. Read only."},
        "paths": paths,
        "components": {"schemas": components},
    }


def _described(operation: Operation, schema: dict[str, Any], problem: dict[str, Any]) -> dict[str, Any]:
    numbers = {} if operation.path == "/try" else _NUMBERS  # a request's limit is a text such as 0.5
    parameters: list[dict[str, Any]] = [
        {"name": word, "in": "query", "schema": {"type": numbers.get(word, "string")}} for word in operation.query
    ]
    if operation.name:
        parameters.append({"name": operation.name, "in": "path", "required": True, "schema": {"type": "string"}})
    answers = {"200": _answer("The facts", schema), "400": _answer("The request is malformed", problem)}
    if operation.name:
        answers["404"] = _answer("Not found", problem)
    operation_id = operation.path.strip("/").replace("/", "_").replace("{", "").replace("}", "")
    return {"operationId": operation_id, "summary": operation.summary, "parameters": parameters, "responses": answers}


def _answer(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
