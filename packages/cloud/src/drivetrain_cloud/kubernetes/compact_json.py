"""JSON as an API server speaks it: by orjson where that is installed, which is faster."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

_orjson: ModuleType | None = None
# It comes with the extra; what is here works without it.
with contextlib.suppress(ImportError):
    import orjson as _orjson


def dumps(value: object) -> bytes:
    """Returns a value as JSON without spaces.

    Example:
        >>> dumps({"a": [1, None]})
        b'{"a":[1,null]}'
    """
    if _orjson is not None:
        # Numbers beyond 64 bits, and half characters, are left to json.
        with contextlib.suppress(TypeError):
            made: bytes = _orjson.dumps(value)
            return made
    return json.dumps(value, separators=(",", ":")).encode()


def loads(text: str | bytes) -> Any:
    """Returns the value of JSON.

    Raises:
        ValueError: It is no JSON.

    Example:
        >>> loads(b"[1, 2]")
        [1, 2]
    """
    return json.loads(text) if _orjson is None else _orjson.loads(text)
