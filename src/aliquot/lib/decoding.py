"""Decoding into types with msgspec, by several threads.

msgspec builds what it knows of a struct when one is first decoded, and shows it to other threads before it is complete:
two first decodes at once end the process (SIGSEGV, seen with 0.22.0). Here one thread builds at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar, overload

import msgspec

T = TypeVar("T")
Hook = Callable[[type, Any], Any]
_DECODERS: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}
_BUILDING: Final = threading.Lock()


@overload
def decode_json(data: bytes | str, kind: type[T], hook: Hook | None = None) -> T: ...
@overload
def decode_json(data: bytes | str, kind: Any, hook: Hook | None = None) -> Any: ...
def decode_json(data: bytes | str, kind: Any, hook: Hook | None = None) -> Any:
    """JSON as a value of a type; `hook` makes values of types that msgspec does not know, the same at every call.

    Raises:
        msgspec.MsgspecError: it is not JSON, or not of that type.
    """
    return _decoder(kind, hook).decode(data)


@overload
def convert_to(kind: type[T], document: Any) -> T: ...
@overload
def convert_to(kind: Any, document: Any) -> Any: ...
def convert_to(kind: Any, document: Any) -> Any:
    """A decoded document as a value of a type.

    Raises:
        msgspec.ValidationError: it is not of that type.
    """
    _decoder(kind, None)
    return msgspec.convert(document, kind)


def _decoder(kind: Any, hook: Hook | None) -> msgspec.json.Decoder[Any]:
    found = _DECODERS.get(kind)
    if found is None:
        with _BUILDING:
            found = _DECODERS.setdefault(kind, msgspec.json.Decoder(kind, dec_hook=hook))
    return found
