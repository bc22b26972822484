"""`aliquot node`: the agent of one node of a Kubernetes cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aliquot.cli.options import SECONDS, emulate_option, not_gpus_option, only_gpus_option, otlp_option


@click.command()
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="Settings as YAML, named as the flags.")
@click.option("--print-config", is_flag=True, help="Print the settings as such a file, and end.")
@click.option("--node-name", metavar="NAME", help="The node to speak for. [default: the host's name]")
@click.option("--kubeconfig", metavar="FILE", help="How to reach the API server. [default: the pod's service account]")
@emulate_option
@click.option("--driver-root", metavar="DIR", help="Below which the NVIDIA driver lies. [default: /]")
@click.option("--extra-libraries", metavar="NAMES",
              help="Further driver libraries for containers: graphics, or names as libnvidia-fbc.so.",
)  # fmt: skip
@click.option("--extra-devices", metavar="PATHS", help="Further devices for every container, as /dev/infiniband/*.")
@click.option("--host-root", metavar="DIR", help="Where the node's root is mounted, for those devices. [default: /]")
@click.option("--gpus", metavar="own|coexist",
              help="Owner of the GPUs: this agent, or a stock plugin from which holder pods take some. [default: own]",
)  # fmt: skip
@only_gpus_option
@not_gpus_option
@click.option("--holder-namespace", metavar="NAME", help="Where holder pods are (coexist). [default: kube-system]")
@click.option("--turns", metavar="fluid|kubeshare|gemini",
              help="Turn policy; must match the arbiter's. [default: fluid]",
)  # fmt: skip
@click.option("--runtime-dir", metavar="DIR", help="Tenants, and the arbiter's sockets. [default: /run/aliquot]")
@click.option("--state-dir", metavar="DIR", help="The checkpoint. [default: /var/lib/aliquot]")
@click.option("--cdi-dir", metavar="DIR", help="Where the runtime reads CDI files. [default: /run/cdi]")
@click.option("--kubelet-dir", metavar="DIR", help="Kubelet's root folder. [default: /var/lib/kubelet]")
@click.option("--ids-per-gpu", type=int, metavar="N", help="Device ids of each GPU. [default: 100]")
@click.option(
    "--node-labels/--no-node-labels", default=None, help="Whether to label the node by its GPUs. [default: yes]"
)
@click.option("--labels", metavar="KEY=VALUE,...", help="Further labels of your own for the node.")
@click.option("--health-period-s", type=SECONDS, metavar="S", help="Period of all checks. [default: 5]")
@click.option("--allocation-check-period-s", type=SECONDS, metavar="S", help="Between two checks. [default: 30]")
@click.option("--pre-start-wait-s", type=SECONDS, metavar="S", help="How long a start may be waited for. [default: 20]")
@click.option("--replace-pods/--no-replace-pods", default=None,
              help="Whether pods that cannot be served are deleted where a controller recreates them. [default: yes]",
)  # fmt: skip
@click.option(
    "--audit-grace-s",
    type=SECONDS,
    metavar="S",
    help="How long a program may use a shared GPU unregistered before it is reported. [default: 10]",
)
@click.option("--audit-kill/--no-audit-kill", default=None,
              help="Whether such programs are killed where a pod runs them. [default: no]",
)  # fmt: skip
@click.option("--display-address", metavar="IP", help="Where pages and metrics are served. [default: 127.0.0.1]")
@click.option("--display-port", type=int, metavar="N", help="The port for it; 0 serves none. [default: 5678]")
@click.option("--metric-aliases", metavar="NAMES", help="Also publish as gpu-manager, hami, hami-legacy.")
@click.option("--aliyun-unit", metavar="GiB|MiB", help="Unit of aliyun.com/gpu-mem. [default: GiB]")
@click.option("--gpushare-inspect/--no-gpushare-inspect", default=None,
              help="Offer aliyun.com/gpu-mem and gpu-count, which kubectl inspect gpushare reads. [default: no]",
)  # fmt: skip
@click.option("--log-format", metavar="text|json", help="How to log, on stderr. [default: text]")
@otlp_option
def node(config: Path | None, print_config: bool, **flags: Any) -> None:
    """Serve this node's GPUs to the pods that were planned on it."""
    from aliquot.node.settings import print_settings, read_settings

    settings = read_settings(config, flags)
    if print_config:
        click.echo(print_settings(settings), nl=False)
        return
    from aliquot.node.program import serve

    serve(settings)
