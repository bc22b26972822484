"""Write docs/reference/*.md from the code; with --check say whether they are stale.

What a page says of a thing stands beside the thing in the code: a field's description, an option's help, a constant's
docstring. Where the code has no place for words they stand here, and a name that has none stops the tool.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]

from reference import api, commands, configuration, crds, metrics, names  # noqa: E402 - found by the path above
from reference.markdown import HEADER, table  # noqa: E402

FOLDER = ROOT / "docs" / "reference"
PAGES = {
    "crds.md": (crds.page_text, "SharePod, VGPU, GPUQuota: every field with its type, default and rules"),
    "annotations.md": (names.page_text, "resources, annotations and labels on pods, nodes and namespaces"),
    "metrics.md": (metrics.page_text, "what the scheduler, the nodes and the arbiters tell Prometheus"),
    "configuration.md": (configuration.page_text, "the node agent's settings, the arbiter's, environment variables"),
    "cli.md": (commands.aliquot_page, "every command of `aliquot`"),
    "kubectl.md": (commands.kubectl_page, "every command of `kubectl aliquot`"),
    "api.md": (api.page_text, "the dashboard's JSON API"),
}


def index() -> str:
    """The page that leads to the others."""
    rows = [(f"[{name}]({name})", text) for name, (_, text) in PAGES.items()]
    more = (
        "The chart's values stand with their defaults in [values.yaml](../../deploy/chart/values.yaml). The pages here "
        "are made from the code by `tools/gen_reference.py`; a test fails when they say something else."
    )
    return "\n\n".join([f"{HEADER}\n\n# Reference", table(("page", "what it lists"), rows), more]) + "\n"


def made() -> dict[str, str]:
    """Every page by the name of its file."""
    return {"README.md": index()} | {name: page() for name, (page, _) in PAGES.items()}


def main() -> int:
    """Write the files, or compare."""
    pages = made()
    if "--check" in sys.argv:
        stale = [name for name, text in pages.items() if not _same(FOLDER / name, text)]
        stale += [path.name for path in FOLDER.glob("*") if path.name not in pages]
        print(
            "\n".join(f"docs/reference/{name} is stale; run tools/gen_reference.py" for name in stale), file=sys.stderr
        )
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (FOLDER / name).write_text(text)
    return 0


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
