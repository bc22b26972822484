"""Rows of published traces, imported: the numbers expected are those in the rows.

`tests/data/traces/README.md` says where the rows are from.
"""

from __future__ import annotations

from pathlib import Path

from imported_traces import Imported


def test_published_tasks_of_pai(tmp_path: Path):
    """Three tasks ran; two failed with no end in the table; five waited, with empty cells for what they ask for."""
    imported = Imported(tmp_path, "pai", "pai_published_task_table.csv", models=True)

    # The earliest of the three started at 2152271, and times count from there.
    assert {
        "c936346f45eccd34bf748541/tensorflow": (2693235 - 2152271, 2695847 - 2693235, 0.5),
        "455c3dec270f4777ad67721c/tensorflow": (3399583 - 2152271, 3399732 - 3399583, 1),
        "ba64aa2f0feff18428923e92/tensorflow": (0, 2158213 - 2152271, 0.5),
    } == imported.times()
    assert {"ended at an unknown time": 2, "never started": 5} == imported.facts["dropped"]
    assert {("6000", "30000", "MISC")} == {
        (row["cpu_milli"], row["memory_mib"], row["gpu_model"]) for row in imported.rows.values()
    }
