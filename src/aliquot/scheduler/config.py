"""The configuration by which the stock kube-scheduler calls the extender."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aliquot.kube.manifest import read_yaml_file


def kube_scheduler_config(url: str, *, ca_file: str = "") -> dict[str, Any]:
    """The configuration for an extender at `url`; over https with `ca_file`, the CA that signed its certificate."""
    config: dict[str, Any] = read_yaml_file(Path(__file__).with_name("kube-scheduler.yaml"))
    secure = url.startswith("https://")
    extender = config["extenders"][0]
    extender |= {"urlPrefix": url.rstrip("/"), "enableHTTPS": secure}
    if secure and ca_file:
        extender["tlsConfig"] = {"caFile": ca_file}
    return config
