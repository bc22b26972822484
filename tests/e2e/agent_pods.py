"""Pods at whose address somebody of the test answers, as a node's agent does or the scheduler."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
from cluster.control_plane import ControlPlane
from cluster.namespaces import NODE_ADDRESS
from cluster.ours import agent_pod

from aliquot.node.display.server import node_body
from aliquot.status.nodes import NodeReport


class _Page(BaseHTTPRequestHandler):
    """What the agent of a node answers on /node.json."""

    body = b""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/node.json" else 404)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def agent(plane: ControlPlane, namespace: str, node: str, told: NodeReport) -> Iterator[None]:
    """A pod with the labels of a node's agent, at whose address the agent's page is answered."""
    agent_pod(plane, namespace, node)
    handler = type("Page", (_Page,), {"body": msgspec.json.encode(node_body(told))})
    server = ThreadingHTTPServer((NODE_ADDRESS, 5678), handler, bind_and_activate=False)
    server.daemon_threads = True
    server.socket.close()
    server.socket = plane.rooms.listener(5678, NODE_ADDRESS)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/agent")
