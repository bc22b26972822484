"""The real matrices that tests read (sources: tests/data/topologies/README.md)."""

from pathlib import Path

from aliquot.topology import Topology, parse_topo

FOLDER = Path(__file__).parent / "data" / "topologies"
SHORT = "cut/h200_8gpu_gpuonly"
WHOLE = sorted(path.stem for path in FOLDER.glob("*.txt"))


def text_of(name: str) -> str:
    """A matrix as it was printed."""
    return (FOLDER / f"{name}.txt").read_text("utf-8")


def machine(name: str) -> Topology:
    """A matrix, read."""
    return parse_topo(text_of(name))


SMALL = [name for name in WHOLE if machine(name).count <= 8]
