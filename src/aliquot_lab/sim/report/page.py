"""The page itself: the verdict, one table of all policies, and a finding above every picture (report.html)."""

from __future__ import annotations

from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from aliquot_lab.sim.report import findings, pictures
from aliquot_lab.sim.report.pictures import SIZES, png
from aliquot_lab.sim.study import Made, Study

TEMPLATES: Final = Environment(
    loader=PackageLoader("aliquot_lab.sim.report", "."),
    autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined,
)  # fmt: skip
TEMPLATES.globals |= {"sizes": SIZES, "png": png}


def page(study: Study, facts: dict[str, Any], times: dict[str, Any] | None, made: Made | None = None) -> str:
    """The whole report as HTML; every number in it is one of `summary.json` (or `timing.json`)."""
    rows = facts["policies"]
    load = f" at load {facts['load']:g}" if facts["load"] is not None else ""
    cluster = facts["cluster"]
    shown: dict[str, Any] = {
        "title": f"{facts['trace']}{load} on {cluster['gpus']:,} GPUs ({cluster['source']})",
        "verdict": findings.verdict(facts),
        "seeds": sorted({seed for row in rows for seed in row["seeds"]}),
        "sizes_picture": pictures.sizes(facts["sizes"]) if "sizes" in facts else None,
        "decisions": times and findings.decisions(times),
    }
    if rows:
        shown |= {
            "columns": [column for column in findings.COLUMNS if any(row["mean"].get(column[0]) for row in rows)],
            "by_kind": findings.by_kind(rows),
            "by_user": findings.by_user(rows),
            "more_users": len(rows[0]["users"]) - findings.MAX_USERS,
            "gpu_hours": findings.gpu_hours(rows, priced=facts["gpu_hour_price"] is not None),
            "waits": pictures.waits(facts),
            "curves": pictures.curves(study, facts),
            "heats": [pictures.heat(study, group) for group in study.policies],
        }
    return TEMPLATES.get_template("report.html").render(shown, facts=facts, made=made)
