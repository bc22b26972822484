"""An extender over one scene, asked as kube-scheduler asks it."""

import asyncio
import json
from typing import Any

from control_scene import Scene, Truth
from kit.objects import node

from aliquot.scheduler.extender.server import Extender

HALF = {"aliquot.dev/gpu-percent": 50}


class Served:
    """An extender over one scene, asked as ASGI servers ask."""

    def __init__(self, *, synced: bool = True, leads: bool = True, webhook: bool = True) -> None:
        self.scene = Scene(Truth(), [node("n", 2), node("m", 1)])
        scene = self.scene
        self.extender = Extender(
            scene.ledger, scene.binder, scene.cache.get, lambda: synced, lambda: leads, lambda: webhook
        )
        self.app = self.extender.app()

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """Status and body of the answer."""
        sent: list[dict[str, Any]] = []
        parts = [{"type": "http.request", "body": body, "more_body": False}]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()],
            "http_version": "1.1",
            "scheme": "http",
            "server": ("test", 80),
            "client": ("test", 1),
            "root_path": "",
        }

        async def receive() -> Any:
            return parts.pop(0) if parts else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(self.app(scope, receive, send))
        self.headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], b"".join(part.get("body", b"") for part in sent[1:])

    def post(self, verb: str, message: Any) -> tuple[int, Any]:
        """Status and decoded answer of a verb."""
        status, body = self.ask(
            "POST", f"/{verb}", message if isinstance(message, bytes) else json.dumps(message).encode()
        )
        return status, json.loads(body)


def pod(limits: dict[str, Any] | None = None, **annotations: str) -> dict[str, Any]:
    """A pod as kube-scheduler sends it."""
    return {
        "metadata": {"name": "x", "namespace": "default", "uid": "uid-x", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits or HALF}}]},
    }
