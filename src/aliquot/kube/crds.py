"""CustomResourceDefinitions, made from the types that decode the objects.

A structural schema is written from msgspec's view of a type: fields, patterns, enumerations, descriptions. What types
cannot say is written here: rules in CEL, printer columns, short names. `tools/gen_crds.py` writes the files under
deploy/crds; a test sees that they are fresh, another that the real API server takes them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import inspect as types

from aliquot.kube.custom import GPUQUOTAS, SHAREPODS, VGPUS, SharePod
from aliquot.kube.resources import Resource

Schema = dict[str, Any]
Rule = tuple[str, str]
Column = tuple[str, str, str] | tuple[str, str, str, int]
AGE: Final[Column] = ("Age", "date", ".metadata.creationTimestamp")


@dataclass(frozen=True)
class Definition:
    """What a CRD has besides its schema: columns (name, type, path, priority), and by path rules (CEL, message), the
    key of a list that is a map, and fields of which one at least must be there. CEL sees no field without a type.
    """

    resource: Resource[Any]
    short: Sequence[str]
    columns: Sequence[Column]
    rules: Mapping[str, Sequence[Rule]]
    list_keys: Mapping[str, str]
    one_of_these: Mapping[str, Sequence[str]] = field(default_factory=dict)


def _fixed(name: str, what: str) -> Rule:
    return (
        f"!has(oldSelf.{name}) || oldSelf.{name} == '' || (has(self.{name}) && self.{name} == oldSelf.{name})",
        f"{name} cannot be changed once {what}",
    )


CONDITIONS: Final = {"status.conditions": "type"}
DEFINITIONS: Final = (
    Definition(
        SHAREPODS,
        ("shp",),
        (
            ("Request", "string", ".spec.gpu.request"),
            ("Limit", "string", ".spec.gpu.limit"),
            ("Memory", "string", ".spec.gpu.memory"),
            ("Phase", "string", ".status.phase"),
            ("Node", "string", ".status.nodeName"),
            ("GPU", "string", ".status.gpuUUID", 1),
            ("vGPU", "string", ".status.gpuID", 1),
            AGE,
        ),
        {
            "spec": (_fixed("nodeName", "the SharePod has a node"),),
            "spec.gpu": (
                _fixed("gpuID", "the SharePod has a vGPU"),
                (
                    "!has(self.affinity) || !has(self.antiAffinity) || self.affinity == '' "
                    "|| self.affinity != self.antiAffinity",
                    "affinity and antiAffinity are the same label, which cannot mean together and apart",
                ),
            ),
            "spec.template.spec": (
                (
                    "self.containers.all(c, self.containers.exists_one(d, d.name == c.name))",
                    "two containers have the same name; each needs one of its own",
                ),
            ),
        },
        CONDITIONS,
    ),
    Definition(
        VGPUS,
        ("vg",),
        (
            ("Node", "string", ".spec.nodeName"),
            ("Phase", "string", ".status.phase"),
            ("Requested", "string", ".status.requested"),
            ("Model", "string", ".status.model"),
            ("UUID", "string", ".status.uuid", 1),
            AGE,
        ),
        {"spec": (("self.nodeName == oldSelf.nodeName", "nodeName cannot be changed; a vGPU stays on its node"),)},
        CONDITIONS,
    ),
    Definition(
        GPUQUOTAS,
        ("gq",),
        (("Held", "string", ".status.summary"), AGE),
        {},
        CONDITIONS | {"spec.limits": "model", "status.used": "model"},
        {"spec.limits[]": ("gpus", "memory")},
    ),
)


def definition(d: Definition) -> dict[str, Any]:
    """The whole CustomResourceDefinition."""
    r = d.resource
    fields = {f.encode_name: f for f in _struct(types.type_info(r.type)).fields}
    properties = {name: _schema(fields[name].type, name, d) for name in ("spec", "status")}
    if r.type is SharePod:
        properties["spec"]["properties"]["template"] = _template(d)
    schema: Schema = {
        "type": "object",
        "description": _doc(r.type),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            **properties,
        },
    }
    names = {"kind": r.kind, "listKind": f"{r.kind}List", "plural": r.plural, "singular": r.kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{r.plural}.{r.group}"},
        "spec": {
            "group": r.group,
            "scope": "Namespaced" if r.namespaced else "Cluster",
            "names": names | {"shortNames": list(d.short), "categories": ["aliquot"]},
            "versions": [
                {
                    "name": r.version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(column) for column in d.columns],
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def _column(column: Column) -> dict[str, Any]:
    made: dict[str, Any] = {"name": column[0], "type": column[1], "jsonPath": column[2]}
    return made | ({"priority": column[3]} if len(column) == 4 else {})


def _struct(info: types.Type) -> types.StructType:
    assert isinstance(info, types.StructType)
    return info


def _doc(cls: type) -> str:
    return (inspect.getdoc(getattr(cls, "__origin__", cls)) or "").split("\n\n")[0].replace("\n", " ")


def _schema(info: types.Type, path: str, d: Definition) -> Schema:
    """The structural schema of a type; `path` names its place for rules and list keys."""
    if isinstance(info, types.Metadata):
        return {**_schema(info.type, path, d), **(info.extra_json_schema or {})}
    made = _of_type(info, path, d)
    if rules := d.rules.get(path):
        made["x-kubernetes-validations"] = [{"rule": rule, "message": message} for rule, message in rules]
    return made


def _of_type(info: types.Type, path: str, d: Definition) -> Schema:
    match info:
        case types.StructType():
            return _object(info, path, d)
        case types.StrType():
            return _bounds({"type": "string"}, info, {"min_length": "minLength", "max_length": "maxLength"})
        case types.IntType():
            return _bounds({"type": "integer", "format": "int64"}, info, {"ge": "minimum", "le": "maximum"})
        case types.BoolType():
            return {"type": "boolean"}
        case types.LiteralType():
            return {"type": "string", "enum": list(info.values)}
        case types.ListType():
            return _list(info, path, d)
        case types.UnionType():
            return _union(info, path, d)
        case types.DictType() | types.AnyType():
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    raise TypeError(f"{path}: no schema for {info}")


def _bounds(made: Schema, info: Any, keys: Mapping[str, str]) -> Schema:
    for attribute, key in keys.items():
        if (value := getattr(info, attribute)) is not None:
            made[key] = value
    if getattr(info, "pattern", None):
        made["pattern"] = info.pattern
    return made


def _union(info: types.UnionType, path: str, d: Definition) -> Schema:
    """Null means left out, which is not worth a `nullable`; text or number has no type in OpenAPI."""
    kinds = [t for t in info.types if not isinstance(t, types.NoneType)]
    if len(kinds) == 1:
        return _schema(kinds[0], path, d)
    return {"x-kubernetes-preserve-unknown-fields": True, "maxItems": 0, "maxProperties": 0}


def _list(info: types.ListType, path: str, d: Definition) -> Schema:
    made: Schema = {"type": "array", "items": _schema(info.item_type, f"{path}[]", d)}
    if info.max_length is not None:
        made["maxItems"] = info.max_length
    if key := d.list_keys.get(path):
        made |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
        if key == "type":
            made["items"]["required"] = [key]
        else:
            made["items"]["properties"][key]["default"] = ""
    return made


def _object(info: types.StructType, path: str, d: Definition) -> Schema:
    made: Schema = {"type": "object", "description": _doc(info.cls), "properties": {}}
    required = []
    for part in info.fields:
        made["properties"][part.encode_name] = _schema(part.type, f"{path}.{part.encode_name}", d)
        if part.required:
            required.append(part.encode_name)
    if required:
        made["required"] = required
    if names := d.one_of_these.get(path):
        made["anyOf"] = [{"required": [name]} for name in names]
    return made


def _template(d: Definition) -> Schema:
    """A PodTemplateSpec: the API server checks it when the pod is made, here only that there are containers."""
    path = "spec.template.spec"
    free: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    container = {**free, "required": ["name"], "properties": {"name": {"type": "string", "maxLength": 63}}}
    containers = {"type": "array", "minItems": 1, "maxItems": 64, "items": container}
    rules = [{"rule": rule, "message": message} for rule, message in d.rules.get(path, ())]
    spec = {
        **free,
        "required": ["containers"],
        "properties": {"containers": containers},
        "x-kubernetes-validations": rules,
    }
    return {
        "type": "object",
        "description": "The pod to make, as in a Deployment.",
        "required": ["spec"],
        "properties": {"metadata": free, "spec": spec},
    }


def files() -> dict[str, dict[str, Any]]:
    """Every CRD by the name of its file."""
    return {f"{d.resource.plural}.yaml": definition(d) for d in DEFINITIONS}
