"""`/api/v1`: the facts as JSON, each path as `aliquot.web.openapi` describes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aliquot.lib.package import version
from aliquot.model.errors import UserError
from aliquot.status import GpuState, StatusSource
from aliquot.status.history import range_of
from aliquot.status.hours import as_csv, dimensions
from aliquot.status.source import totals
from aliquot.web import openapi
from aliquot.web.openapi import Listing, Problem
from aliquot.web.pages import NotHere, hours, trying
from aliquot.web.pages.gpu import find
from aliquot.web.pages.workloads import STATES

T = TypeVar("T")
Read = Callable[[StatusSource, Request], Any]
Door = Callable[[Mapping[str, str]], StatusSource]
"""The facts that the viewer who sent these headers may see."""


def routes(door: Door) -> list[Route]:
    """Every path of the API."""
    reads: dict[str, Read] = {
        "/totals": lambda facts, _: totals(facts),
        "/gpus": _gpus,
        "/gpus/{uuid}/history": _history,
        "/workloads": _workloads,
        "/workloads/{name:path}/explain": _explain,
        "/nodes": lambda facts, request: _listing(facts, request, facts.nodes()),
        "/nodes/{name}/topology": _topology,
        "/pool": lambda facts, _: facts.pool(),
        "/quota": lambda facts, request: _listing(facts, request, facts.quota()),
        "/events": lambda facts, request: _listing(facts, request, facts.events(_count(request, "since", 0))),
        "/hours": lambda facts, request: hours.asked_hours(facts, request.query_params),
        "/gpus/{uuid}/timeline": _timeline,
        "/gpus/{uuid}/turns": _turns,
        "/try": lambda facts, request: facts.try_request(trying.request_of(request.query_params)),
    }
    takes = {operation.path: operation.query for operation in openapi.OPERATIONS}
    found = [
        Route(f"/api/v1{path}", _endpoint(door, read, takes[path.replace(":path", "")])) for path, read in reads.items()
    ]
    found.append(Route("/api/v1/hours.csv", _hours_csv(door)))
    return [*found, Route("/api/v1/openapi.json", lambda _request: _json(_document()))]


def problem(text: str, status: int) -> Response:
    """The error response."""
    return _json(msgspec.json.encode(Problem(text)), status)


def _endpoint(door: Door, read: Read, takes: Sequence[str]) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        try:
            _require_known(request, takes)
            return _json(msgspec.json.encode(read(door(request.headers), request)))
        except UserError as error:
            return problem(str(error), 400)

    return endpoint


def _require_known(request: Request, takes: Sequence[str]) -> None:
    """Refuse a misspelt filter: without one the answer would be of everything.

    Raises:
        UserError: the query has a parameter that this path does not take.
    """
    for name in request.query_params:
        if name not in takes:
            known = f"it takes {', '.join(takes)}" if takes else "it takes none"
            raise UserError(f'{request.url.path[:100]} has no parameter "{name[:40]}"; {known}')


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


@cache
def _document() -> bytes:
    return msgspec.json.encode(openapi.document(version()))


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


def _gpus(facts: StatusSource, request: Request) -> Listing[Any]:
    query = request.query_params
    wanted = {name: query[name] for name in ("node", "model", "state") if query.get(name)}
    _require_word("state", wanted.get("state"), get_args(GpuState))
    found = [gpu for gpu in facts.gpus() if all(getattr(gpu, name) == value for name, value in wanted.items())]
    return _listing(facts, request, found)


def _workloads(facts: StatusSource, request: Request) -> Listing[Any]:
    query = request.query_params
    wanted = {name: query[name] for name in ("namespace", "state") if query.get(name)}
    workloads = facts.workloads()
    _require_word("state", wanted.get("state"), dict.fromkeys([*STATES, *(each.state for each in workloads)]))
    found = [each for each in workloads if all(getattr(each, name) == value for name, value in wanted.items())]
    return _listing(facts, request, found)


def _require_word(name: str, word: str | None, known: Iterable[str]) -> None:
    """Refuse a value that nothing can have.

    Raises:
        UserError: the filter's word is not one of those known.
    """
    if word is not None and word not in known:
        raise UserError(f'{name} "{word[:40]}" is not one of {", ".join(known)}')


def _history(facts: StatusSource, request: Request) -> Any:
    uuid = request.path_params["uuid"]
    return _there(facts.history(uuid, _count(request, "seconds", 3600)), f"There is no GPU {uuid[:60]} here.")


def _timeline(facts: StatusSource, request: Request) -> Any:
    uuid = find(facts, request.path_params["uuid"]).uuid
    return facts.past.timeline(uuid, range_of(request.query_params.get("range", "")))


def _turns(facts: StatusSource, request: Request) -> Any:
    uuid = find(facts, request.path_params["uuid"]).uuid
    return _there(facts.turns(uuid), f"The turns of GPU {uuid[:60]} are not known here.")


def _hours_csv(door: Door) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        try:
            found = hours.asked_hours(door(request.headers), request.query_params)
            text = as_csv(found, dimensions(request.query_params.get("by", "")))
        except UserError as error:
            return problem(str(error), 400)
        headers = {"content-disposition": 'attachment; filename="gpu-hours.csv"'}
        return Response(text, media_type="text/csv", headers=headers)

    return endpoint


def _explain(facts: StatusSource, request: Request) -> Any:
    name = request.path_params["name"]
    return _there(facts.explain(name), f"There is no workload {name[:100]} here.")


def _topology(facts: StatusSource, request: Request) -> Any:
    name = request.path_params["name"]
    return _there(facts.topology(name), f"The links are not known of {name[:100]}.")


def _there(found: T | None, otherwise: str) -> T:
    if found is None:
        raise NotHere(otherwise)
    return found
