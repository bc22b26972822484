"""What if: a request, where it would be placed, why, and what would remain. Nothing is reserved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import msgspec
import yaml

from aliquot.kube.manifest import MAX_DEPTH, read_yaml
from aliquot.model import sharepod
from aliquot.model.errors import UserError
from aliquot.model.requests import GpuRequest, checked, parse_label
from aliquot.status import StatusSource
from aliquot.web.pages import Drawn, Query, commands, with_bars
from aliquot.web.render import block

TEXT_BYTES: Final = 16_384
_LABELS: Final = ("gpu_id", "affinity", "anti_affinity", "exclusion")
_FIELDS: Final = ("request", "limit", "memory", "model", *_LABELS)


def draw(facts: StatusSource, query: Query) -> Drawn:
    """The form, and the answer if a request was entered."""
    trial, error, command, text = None, "", "", ""
    if any(query.get(name) for name in ("request", "yaml")):
        try:
            gpu, uuid = gpu_spec(query), query.get("gpu", "").strip()
            trial, command = facts.try_request(_request(gpu, uuid)), commands.trial(facts, gpu, uuid)
            text = "" if query.get("yaml") or uuid else manifest(gpu)
        except UserError as mistake:
            error = str(mistake)
    models = sorted({gpu.model for gpu in facts.gpus()})
    groups = (("now", trial.before), ("with it", trial.after)) if trial is not None and trial.fits else ()
    rows = [(when, with_bars(gpus)) for when, gpus in groups]
    blocks = [block("trial", "blocks/trial.html", trial=trial, error=error, rows=rows, manifest=text)]
    return Drawn("What if", blocks, {"models": models, "command": command})


def request_of(query: Query) -> GpuRequest:
    """The request of a query, on the GPU that it names, if it names one.

    Raises:
        UserError: it cannot be read, or the numbers contradict each other.
    """
    return _request(gpu_spec(query), query.get("gpu", "").strip())


def gpu_spec(query: Query) -> sharepod.GpuSpec:
    """The request of a query as a SharePod has it: that of its `yaml`, a SharePod, or else its fields.

    Raises:
        UserError: the text is not one SharePod, or a field is not a label.
    """
    text = query.get("yaml", "").strip()
    if not text:
        given: dict[str, Any] = {name: query[name].strip() for name in _FIELDS if query.get(name, "").strip()}
        labels = {name: parse_label(given[name]) for name in _LABELS if name in given}
        return sharepod.GpuSpec(**{"request": "0.5"} | given | labels)
    if len(text) > TEXT_BYTES:
        raise UserError(f"the SharePod is longer than {TEXT_BYTES} characters; paste less")
    # Of aliases a few hundred bytes could be made into gigabytes.
    depth = 0
    try:
        for event in yaml.parse(text):
            mark: Any = event.start_mark
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                break  # the loader refuses it, and quickly
            if isinstance(event, yaml.AliasEvent):
                raise UserError(f"line {mark.line + 1}: an alias (*{event.anchor}) is not taken here; write it out")
            if getattr(event, "tag", None):
                raise UserError(f"line {mark.line + 1}: a tag (!) is not taken here; leave it out")
    except yaml.YAMLError:
        pass  # the loader names it
    documents = read_yaml(text)
    if len(documents) != 1:
        raise UserError(f"the text has {len(documents)} documents; paste one SharePod")
    return sharepod.parse_sharepod(documents[0]).spec.gpu


def _request(gpu: sharepod.GpuSpec, uuid: str) -> GpuRequest:
    return checked(replace(sharepod.gpu_request(gpu), gpu=uuid), request_name="request", limit_name="limit")


def manifest(gpu: sharepod.GpuSpec) -> str:
    """A SharePod with this request, in YAML, for its owner to complete."""
    container = sharepod.ContainerTemplate("main", command=["python3", "train.py"])
    spec = sharepod.SharePodSpec(gpu, sharepod.PodTemplateSpec(sharepod.TemplateSpec([container])))
    pod = sharepod.SharePodManifest(sharepod.API_VERSION, "SharePod", sharepod.Metadata("train"), spec)
    return yaml.safe_dump(msgspec.to_builtins(pod), sort_keys=False, allow_unicode=True)
