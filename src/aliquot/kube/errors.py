"""The API server's error answers, as exceptions by what the caller may do about them."""

from __future__ import annotations

from aliquot.kube.objects import ApiStatus
from aliquot.model.errors import AliquotError, UserError


class KubeError(AliquotError):
    """The API server refused or failed; `status` is its own account."""

    def __init__(self, message: str, status: ApiStatus | None = None, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status or ApiStatus(message=message)
        self.retry_after_s = retry_after_s


class NotFound(KubeError):
    """The object does not exist (404)."""


class Conflict(KubeError):
    """The object is not in the state that the write expected (409)."""


class AlreadyExists(Conflict):
    """An object of that name exists already (409)."""


class Gone(KubeError):
    """The requested version is no longer kept (410); list again."""


class Invalid(KubeError):
    """The API server does not accept the object (400, 413, 422); a retry would fail again."""


class Forbidden(KubeError):
    """The request is not allowed (401, 403)."""


class Busy(KubeError):
    """A temporary refusal (429, 500, 502, 503, 504); as far as is known the request had no effect."""


class Unreachable(KubeError):
    """No answer. `may_have_happened` tells whether the request could have had its effect all the same."""

    def __init__(self, message: str, *, may_have_happened: bool) -> None:
        super().__init__(message)
        self.may_have_happened = may_have_happened


class BadAnswer(KubeError):
    """The answer violates the API's protocol."""


class BadKubeConfig(UserError):
    """The kubeconfig cannot be used."""


def error_of(code: int, status: ApiStatus, what: str, retry_after_s: float) -> KubeError:
    """The exception for an HTTP status; `what` names the request as in `get pods/a`."""
    message = f"{what}: {status.message or status.reason or f'HTTP {code}'}"
    if code == 409:
        kind: type[KubeError] = AlreadyExists if status.reason == "AlreadyExists" else Conflict
        return kind(message, status)
    if code in (429, 500, 502, 503, 504):
        return Busy(message, status, retry_after_s)
    known = {404: NotFound, 410: Gone, 400: Invalid, 413: Invalid, 422: Invalid, 401: Forbidden, 403: Forbidden}
    return known.get(code, KubeError)(message, status)
