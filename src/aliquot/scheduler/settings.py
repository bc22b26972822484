"""The settings of the scheduler: one name for each, the same on the command line and in a file.

The configuration by which the stock kube-scheduler calls the extender.
"""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from aliquot.kube.manifest import read_yaml_file
from aliquot.kube.settings import BadSettings, ProgramSettings, fixed_sizes, flag, require_url
from aliquot.model.quantities import parse_milli

ANY_ADDRESS: Final = ("0.0.0.0", "::")
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class SchedulerSettings(ProgramSettings, frozen=True, kw_only=True):
    """Every setting with its default."""

    bind: Annotated[str, flag("Where to listen; port 0 chooses a free one.", "HOST:PORT")] = "127.0.0.1:8770"
    context: Annotated[str, flag("Context of the kubeconfig.")] = ""
    policy: Annotated[str, flag("Placement policy by name.")] = "aliquot"
    seed: Annotated[int, flag("Random seed, for policies that use one.")] = 0
    tls_cert: Annotated[str, flag("Serve https with this certificate.", "FILE")] = ""
    tls_key: Annotated[str, flag("Key of the certificate.", "FILE")] = ""
    client_ca: Annotated[str, flag("Answer only clients with a certificate of this CA.", "FILE")] = ""
    leader_elect: Annotated[bool, flag("Lead by a Lease.")] = True
    lease_namespace: Annotated[str, flag("Where the Lease is.")] = "kube-system"
    identity: Annotated[str, flag("Name of this candidate; the host's name and process without it.")] = ""
    leader_service: Annotated[str, flag("Service without a selector that leads to the leader, by its name.")] = ""
    leader_address: Annotated[str, flag("With --leader-service: the IP address of this candidate's pod.")] = ""
    gpus: Annotated[
        Literal["own", "coexist"],
        flag("Owner of the GPUs: Aliquot's device plugin, or the stock one, from which holder pods take them."),
    ] = "own"
    claims: Annotated[
        bool, flag("Count what ResourceClaims hold; nodes must serve them (aliquot node). Kubernetes 1.36.")
    ] = False
    claim_sizes: Annotated[
        str,
        flag(
            "Names of fixed sizes that pods may ask for by count, as nodes publish them.", "NAME=HUNDREDTHS/MEMORY,..."
        ),
    ] = ""
    pool: Annotated[str, flag("Idle vGPUs: on-demand, reservation:N, hybrid:SECONDS.")] = "on-demand"
    namespace: Annotated[str, flag("Where holder pods and certificates are.")] = "kube-system"
    holder_image: Annotated[str, flag("Image of holder pods, which must sleep (coexist).")] = ""
    webhook: Annotated[str, flag("Address of the admission webhook; without it there is none.", "HOST:PORT")] = ""
    webhook_service: Annotated[str, flag("The Service in front of it.")] = "aliquot-webhook"
    webhook_name: Annotated[tuple[str, ...], flag("Further names or addresses that its certificate is for.")] = ()
    default_gpu_limit: Annotated[str, flag("gpu-limit of pods that specify none, as 0.5; 1 without it.")] = ""
    pod_scheduler: Annotated[
        str,
        flag("schedulerName of pods that request a GPU and name no scheduler; without it they keep the default one."),
    ] = ""
    gpushare_inspect: Annotated[
        bool,
        flag("Keep aliyun.com/gpu-mem on pods for kubectl inspect gpushare; nodes must offer it (aliquot node)."),
    ] = False
    web: Annotated[str, flag("Serve the dashboard here. [default: nowhere]", "HOST:PORT")] = ""
    web_host: Annotated[tuple[str, ...], flag("Another name of the dashboard's server.", "NAME")] = ()
    web_access: Annotated[
        Literal["open", "token", ""],
        flag(
            "Access to the dashboard: open to every client, or by a token of the cluster, which shows what Kubernetes "
            "lets its owner list. [default: open on a loopback address, token elsewhere]"
        ),
    ] = ""
    web_namespace: Annotated[tuple[str, ...], flag("Show this namespace's names only (open).", "NAME")] = ()
    web_tls_cert: Annotated[str, flag("Serve the dashboard over https with this.", "FILE")] = ""
    web_tls_key: Annotated[str, flag("Key of that certificate.", "FILE")] = ""
    web_agent_port: Annotated[
        int, flag("Port of the nodes' agents, which report the use; 0 queries none.", "N", ge=0, le=65535)
    ] = 5678
    web_history: Annotated[
        str, flag("File of the dashboard's history of 30 days. [default: none; two hours in memory]", "FILE")
    ] = ""
    web_history_mib: Annotated[
        int, flag("The largest size of that file; the oldest is deleted first.", "MIB", ge=16, le=1 << 20)
    ] = 2048
    web_prometheus: Annotated[
        str,
        flag(
            "Read GPU-hours and timelines of a day and more from this Prometheus, which scrapes the agents and "
            "evaluates deploy/grafana/aliquot-recording.yaml.",
            "URL",
        ),
    ] = ""

    @property
    def candidate(self) -> str:
        """The name under which this process stands for election."""
        return self.identity or f"{socket.gethostname()}-{os.getpid()}"

    @property
    def default_limit_milli(self) -> int | None:
        """The limit of pods that specify none; None for a whole GPU."""
        return parse_milli(self.default_gpu_limit) if self.default_gpu_limit else None

    @property
    def webhook_names(self) -> tuple[str, ...]:
        """The names in the webhook's certificate."""
        service = f"{self.webhook_service}.{self.namespace}.svc"
        return (service, f"{service}.cluster.local", *self.webhook_name)

    @property
    def web_tokens(self) -> bool:
        """Whether the dashboard asks for a token."""
        return self.web_access == "token" or (not self.web_access and address(self.web, "--web")[0] not in LOOPBACK)

    @property
    def web_hosts(self) -> frozenset[str]:
        """The names by which browsers may address the dashboard, beside the loopback's."""
        host, _ = address(self.web, "--web")
        return frozenset(self.web_host) | (frozenset() if host in ANY_ADDRESS else frozenset({host}))

    def check(self) -> None:
        """As in `ProgramSettings`."""
        super().check()
        _, port = address(self.bind, "--bind")
        for cert, key, option in (
            (self.tls_cert, self.tls_key, "--tls"),
            (self.web_tls_cert, self.web_tls_key, "--web-tls"),
        ):
            if bool(cert) != bool(key):
                raise BadSettings(f"{option}-cert and {option}-key come together; give both or none")
        if self.client_ca and not self.tls_cert:
            raise BadSettings("--client-ca is for https; give --tls-cert and --tls-key too")
        if bool(self.leader_service) != bool(self.leader_address):
            raise BadSettings("--leader-service and --leader-address come together; give both or none")
        if self.leader_service and port == 0:
            raise BadSettings("--leader-service needs a port that is known; write it in --bind, as 0.0.0.0:8770")
        try:
            ip_address(self.leader_address or "::1")
        except ValueError:
            text = f'--leader-address "{self.leader_address}" is not an IP address; give that of this pod'
            raise BadSettings(text) from None
        if self.webhook:
            address(self.webhook, "--webhook")
        _ = self.default_limit_milli, fixed_sizes(self.claim_sizes)
        if self.web_prometheus:
            require_url(
                self.web_prometheus, "--web-prometheus", "an address", "it as http://prometheus.monitoring:9090"
            )
        if self.web:
            address(self.web, "--web")
        if self.web and self.web_tokens and self.web_namespace:
            raise BadSettings(
                "--web-namespace is for --web-access open; with token each viewer sees what Kubernetes lets them list"
            )


def address(text: str, option: str) -> tuple[str, int]:
    """Host and port of an address.

    Raises:
        BadSettings: it is none.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise BadSettings(f'{option} "{text}" is not an address; write HOST:PORT as in 0.0.0.0:8770')
    return host.strip("[]"), int(port)


def kube_scheduler_config(url: str, *, ca_file: str = "") -> dict[str, Any]:
    """The configuration for an extender at `url`; over https with `ca_file`, the CA that signed its certificate."""
    config: dict[str, Any] = read_yaml_file(Path(__file__).with_name("kube-scheduler.yaml"))
    secure = url.startswith("https://")
    extender = config["extenders"][0]
    extender |= {"urlPrefix": url.rstrip("/"), "enableHTTPS": secure}
    if secure and ca_file:
        extender["tlsConfig"] = {"caFile": ca_file}
    return config
