"""A trace made from files of `tests/data/traces`, or others, as the tests of imports look at it."""

import csv
from datetime import UTC
from pathlib import Path
from typing import Any

from aliquot_lab.sim.imports.importing import import_trace
from aliquot_lab.sim.imports.tables import Wanted

DATA = Path(__file__).resolve().parents[3] / "data" / "traces"


class Imported:
    """A trace made from files, its facts and the warnings."""

    def __init__(self, tmp_path: Path, kind: str, *files: Path | str, models: bool = False, **how: Any) -> None:
        self.path = tmp_path / "trace.csv"
        self.warnings: list[str] = []
        paths = [DATA / file if isinstance(file, str) else file for file in files]
        self.facts = import_trace(
            kind, paths, self.path, how=Wanted(UTC, **how), models=models, warn=self.warnings.append
        )
        with self.path.open() as file:
            self.rows = {row["name"]: row for row in csv.DictReader(file)}

    def times(self) -> dict[str, tuple[float, float, float]]:
        """Arrival, duration and GPUs of each line."""
        return {
            name: (float(row["arrival_s"]), float(row["duration_s"]), float(row["gpu"]))
            for name, row in self.rows.items()
        }


def own_table(tmp_path: Path, text: str) -> tuple[dict[str, Any], list[str]]:
    """What becomes of a table of `text`, and the warnings."""
    source = tmp_path / "own.csv"
    source.write_text(text)
    warnings: list[str] = []
    return import_trace(
        "csv", [source], tmp_path / "out.csv", how=Wanted(), models=False, warn=warnings.append
    ), warnings
