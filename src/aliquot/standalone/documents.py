"""Reads SharePods from files, for the commands that apply or delete them and for the engine that runs them."""

from __future__ import annotations

from aliquot.kube.manifest import BadYaml, read_yaml
from aliquot.model.sharepod import SharePodManifest, parse_sharepod


def read_documents(text: str, name: str = "") -> list[SharePodManifest]:
    """The SharePods of a YAML text; `name` is its file, for messages.

    Raises:
        BadYaml: no YAML, with the line.
        BadSharePod: one of them is invalid; then none is taken.
    """
    documents = read_yaml(text, name)
    if not documents:
        raise BadYaml(f"there is no SharePod in {name or 'this text'}")
    return [parse_sharepod(document) for document in documents]
