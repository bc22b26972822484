"""A receiver of spans on loopback: OTLP over HTTP, answering as told."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Answers = Literal["well", "garbage", "an error", "never"]
SOON_S = 30.0


@dataclass(frozen=True)
class Received:
    """One span as it came."""

    program: str
    name: str
    trace: str
    span: str
    parent: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    error: str


class Receiver:
    """What has come so far."""

    def __init__(self, answers: Answers = "well", listener: socket.socket | None = None) -> None:
        self.spans: list[Received] = []
        self.posts = 0
        self._ended = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.posts += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if answers == "never":
                    receiver._ended.wait(SOON_S)
                elif answers == "garbage":
                    self.wfile.write(b"\x00\x01 nonsense\r\n\r\n")
                elif answers == "an error":
                    self.send_error(400)
                else:
                    receiver._take(self.path, body)
                    self.send_response(200)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self._server.daemon_threads = True
        self._server.socket.close()
        self._server.socket = listener or socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def _take(self, path: str, body: bytes) -> None:
        assert "/v1/traces" == path
        for of in ExportTraceServiceRequest.FromString(body).resource_spans:
            program = {pair.key: pair.value.string_value for pair in of.resource.attributes}["service.name"]
            for span in (span for scope in of.scope_spans for span in scope.spans):
                self.spans.append(
                    Received(
                        program,
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        {pair.key: _value(pair.value) for pair in span.attributes},
                        span.status.message,
                    )
                )

    def wait(self, count: int) -> list[Received]:
        """The spans, by their begin, once so many have come."""
        until_s = time.monotonic() + SOON_S
        while len(self.spans) < count and time.monotonic() < until_s:
            time.sleep(0.01)
        return sorted(self.spans, key=lambda span: (span.began_ns, -span.ended_ns))

    def close(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def receiver(answers: Answers = "well", listener: socket.socket | None = None) -> Iterator[Receiver]:
    """A receiver for a while; `listener` is its socket where it is to be in another network."""
    made = Receiver(answers, listener)
    try:
        yield made
    finally:
        made.close()


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
