"""A few calls to the API server, for making scenes and looking at them; the product's own client is not used here."""

import http.client
import json
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .pki import Pair

PARALLEL = 8


class ApiError(Exception):
    """The API server refused; `status` is the HTTP status, the text its message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """JSON over one kept connection per thread, as the user of a client certificate."""

    def __init__(self, host: str, port: int, authority: Path, pair: Pair) -> None:
        self._where = (host, port)
        self._context = ssl.create_default_context(cafile=str(authority))
        self._context.load_cert_chain(pair.certificate, pair.key)
        self._kept = threading.local()

    def call(self, method: str, path: str, body: Any = None, *, kind: str = "application/json") -> Any:
        """One request; the parsed answer (text that is no JSON comes as it is).

        Raises:
            ApiError: a status of 400 or more.
            OSError: no connection.
        """
        content = None if body is None else json.dumps(body).encode()
        for fresh in (False, True):
            connection = self._connection(fresh=fresh)
            try:
                connection.request(method, path, content, {"Content-Type": kind})
                answer = connection.getresponse()
                raw = answer.read()
                break
            except (http.client.HTTPException, OSError):
                if fresh:
                    self._kept.connection = None
                    raise
        try:
            value = json.loads(raw)
        except ValueError:
            value = raw.decode(errors="replace")
        if answer.status >= 400:
            raise ApiError(answer.status, value.get("message", "") if isinstance(value, dict) else value)
        return value

    def get(self, path: str) -> Any:
        """Reads an object or a list."""
        return self.call("GET", path)

    def create(self, path: str, *objects: dict[str, Any]) -> list[Any]:
        """Creates objects in a collection, several at a time; answers in order."""
        if len(objects) == 1:
            return [self.call("POST", path, objects[0])]
        with ThreadPoolExecutor(PARALLEL) as pool:
            return list(pool.map(lambda item: self.call("POST", path, item), objects))

    def merge(self, path: str, patch: dict[str, Any]) -> Any:
        """Changes an object by a JSON merge patch."""
        return self.call("PATCH", path, patch, kind="application/merge-patch+json")

    def delete(self, path: str) -> None:
        """Deletes an object or a collection; what is not there is deleted already."""
        try:
            self.call("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise

    def _connection(self, *, fresh: bool) -> http.client.HTTPSConnection:
        kept = getattr(self._kept, "connection", None)
        if kept is None or fresh:
            if kept is not None:
                kept.close()
            kept = http.client.HTTPSConnection(*self._where, context=self._context, timeout=30)
            self._kept.connection = kept
        return kept
