"""`aliquot convert`: manifests written for other projects, in Aliquot's words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from aliquot.kube.convert import Converted

TARGETS = ("aliquot", "tencent", "aliyun", "hami", "kubeshare1", "kubeshare2", "nvidia")


@click.command()
@click.option(
    "-f", "--filename", "files", required=True, multiple=True, type=click.Path(), help="YAML or JSON; - is stdin."
)
@click.option("--to", "target", type=click.Choice(TARGETS), default="aliquot", show_default=True, help="Whose words.")
@click.option(
    "--aliyun-unit",
    type=click.Choice(["GiB", "MiB"]),
    default="GiB",
    show_default=True,
    help="Unit of aliyun.com/gpu-mem, as set for gpushare's device plugin.",
)
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
def convert(files: tuple[str, ...], target: str, aliyun_unit: str, output: str) -> None:
    """Show manifests of gpu-manager, gpushare, HAMi, KubeShare and the stock plugin in Aliquot's words.

    Documents without a GPU request are printed unchanged. Comments of the file are not kept. Fields that are
    not understood, or that have no counterpart, are reported on stderr, one line each, and make the exit status 1.

    Example, a manifest of another project, in Aliquot's words:
      aliquot convert -f pod.yaml --to aliquot
    """
    from aliquot.cli.calling import read_text
    from aliquot.cli.forms import text_of
    from aliquot.kube.convert import convert as convert_document
    from aliquot.kube.convert import who
    from aliquot.kube.dialects import NATIVE, foreign
    from aliquot.kube.manifest import read_yaml

    others = foreign(aliyun_unit="MiB" if aliyun_unit == "MiB" else "GiB")
    words = NATIVE if target == "aliquot" else others[target]
    made: list[Converted] = []
    for file in files:
        for document in read_yaml(read_text(file), file):
            made += convert_document(document, words, others)
    for one in made:
        for note in one.notes:
            click.echo(f"{who(one.document)}: {note}", err=True)
    documents = [one.document for one in made]
    if output == "json":
        whole = documents[0] if len(documents) == 1 else {"apiVersion": "v1", "kind": "List", "items": documents}
        click.echo(text_of("json", whole))
    else:
        click.echo("---\n".join(text_of("yaml", document) for document in documents), nl=False)
    if any(one.notes for one in made):
        click.get_current_context().exit(1)
