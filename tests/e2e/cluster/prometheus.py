"""Prometheus and promtool of Debian's package, and a Prometheus in the cluster's network that reads Aliquot's pages."""

import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .namespaces import Namespaces
from .packages import unpacked
from .parts import Part

PORT = 9090


def program(name: str) -> Path:
    """`prometheus` or `promtool`; fetched if it is not there.

    Raises:
        Unavailable: this is no Debian machine, or the archive cannot be reached.
    """
    needed = ("usr/bin/prometheus", "usr/bin/promtool")
    return unpacked("prometheus", {"prometheus": "bookworm"}, needed) / "usr/bin" / name


def fetch(rooms: Namespaces, port: int, path: str, **headers: str) -> tuple[int, bytes]:
    """Status and body of a page that is served on the loopback inside the network."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.sock = rooms.connect(port)
    with closing(connection):
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


class Prometheus:
    """Scrapes `targets` (job to port on the loopback) every second and evaluates the rules of files every second."""

    def __init__(self, rooms: Namespaces, targets: Mapping[str, int], *rules: Path) -> None:
        self._rooms = rooms
        folder = rooms.state / "prometheus"
        folder.mkdir()
        jobs = [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for job, port in targets.items()
        ]
        seconds = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        settings = folder / "prometheus.json"  # JSON is YAML
        settings.write_text(
            json.dumps({"global": seconds, "scrape_configs": jobs, "rule_files": list(map(str, rules))})
        )
        where = (f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{PORT}")
        command = [str(program("prometheus")), f"--config.file={settings}", *where]
        self.part = Part("prometheus", rooms, lambda: command, self._ready)

    def _ready(self) -> bool:
        return fetch(self._rooms, PORT, "/-/ready")[0] == 200

    def _data(self, path: str) -> Any:
        status, body = fetch(self._rooms, PORT, path)
        assert status == 200, body
        return json.loads(body)["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an instant query."""
        found = self._data(f"/api/v1/query?query={quote(expression)}")["result"]
        return [(series["metric"], float(series["value"][1])) for series in found]

    def healthy(self) -> dict[str, str]:
        """How the last scrape of each job went: empty, or the error."""
        targets = self._data("/api/v1/targets")["activeTargets"]
        return {target["labels"]["job"]: target["lastError"] for target in targets if target["health"] != "unknown"}

    def rules(self) -> dict[str, str]:
        """How each rule is: `ok`, or the error of its last evaluation."""
        groups = self._data("/api/v1/rules")["groups"]
        return {rule["name"]: rule.get("lastError") or rule["health"] for group in groups for rule in group["rules"]}
