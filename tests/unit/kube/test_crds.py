"""The CRDs under deploy/ are those of the code."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from aliquot.kube.custom import SharePod

ROOT = Path(__file__).resolve().parents[3]
CRDS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "deploy" / "crds").glob("*.yaml")}


def schemas(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside a schema, with its path."""
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from schemas(inner, f"{path}.{name}")
    if "items" in node:
        yield from schemas(node["items"], f"{path}[]")


def every_schema() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema of every CRD."""
    for name, crd in CRDS.items():
        for version in crd["spec"]["versions"]:
            yield from schemas(version["schema"]["openAPIV3Schema"], name)


def test_the_files_are_fresh():
    """What the generator would write is what is under deploy/crds."""
    done = subprocess.run([sys.executable, ROOT / "tools" / "gen_crds.py", "--check"], capture_output=True, text=True)

    assert 0 == done.returncode, done.stderr


def test_every_schema_is_structural():
    """Each part has a type, or says that it keeps what it is given."""
    bare = [p for p, s in every_schema() if "type" not in s and not s.get("x-kubernetes-preserve-unknown-fields")]

    assert [] == bare


def test_fields_are_named_as_in_kubernetes():
    """Every field on the wire is in camel case."""
    assert [] == [path for path, _ in every_schema() if "_" in path]


def test_every_field_of_a_spec_is_described():
    """`kubectl explain` has a sentence for every field that people write."""
    silent = [p for p, s in every_schema() if ".spec." in p and "template" not in p and not s.get("description")]

    assert [] == [path for path in silent if not path.endswith("[]")]


def test_examples_decode_as_they_are():
    """Every SharePod of the examples is what the operator decodes, its template untouched."""
    for file in sorted((ROOT / "examples").glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            if document["kind"] == "SharePod":
                assert document["spec"]["template"] == msgspec.convert(document, SharePod).spec.template
