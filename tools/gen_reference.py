"""Write docs/reference/*.md from the code; with --check say whether they are stale.

What a page says of a thing stands beside the thing in the code: a field's description, an option's help, a constant's
docstring. Where the code has no place for words they stand here, and a name that has none stops the tool.
"""

from __future__ import annotations

import sys

from generated import ROOT, parser, settle

sys.path.insert(0, str(ROOT / "src"))

from reference import api, commands, configuration, crds, metrics, names
from reference.markdown import HEADER, table

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


def main() -> int:
    """Write the files, or compare."""
    chosen = parser(__doc__).parse_args()
    pages = {"README.md": index()} | {name: page() for name, (page, _) in PAGES.items()}
    made = {FOLDER / name: text for name, text in pages.items()}
    return settle(made, FOLDER.glob("*"), check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
