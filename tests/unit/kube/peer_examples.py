"""The peers' manifests of `tests/data/requests/peer_examples.yaml`, each with what it asks in Aliquot's words."""

from typing import Any

from pods import documents, pod_of

from aliquot.kube.requests import ContainerAsk
from aliquot.model.quantities import parse_memory
from aliquot.model.requests import GpuRequest, Labels


def main(request: GpuRequest, **more: Any) -> ContainerAsk:
    return ContainerAsk("main", request, **more)


def asked(words: dict[str, Any]) -> ContainerAsk:
    """What the container `main` asks for in these words."""
    request = GpuRequest(
        words["request"],
        words.get("limit"),
        parse_memory(words["memory"]) if "memory" in words else None,
        model=words.get("model", ""),
        gpu=words.get("gpu", ""),
        gpu_id=words.get("gpu_id", ""),
        labels=Labels(*(words.get(name, "") for name in ("affinity", "anti_affinity", "exclusion"))),
    )
    others = {name: tuple(words[name]) for name in ("models_not", "uuids_not") if name in words}
    return main(request, parts=words.get("parts", 1), priority=words.get("priority", 0), **others)


TABLE = {
    dialect: {name: (pod_of(row), asked(row["asks"])) for name, row in cases.items()}
    for dialect, cases in documents("peer_examples").items()
}
