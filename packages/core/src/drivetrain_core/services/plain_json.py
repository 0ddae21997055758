"""Plain data as JSON, exactly: what JSON has no form for gets a tag."""

from __future__ import annotations

import base64
import contextlib
import math
import reprlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from drivetrain_core.services._plain_tree import NUMPY, numpy_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TAG = "$"
_DECODERS: Mapping[str, Callable[[Any], object]] = {
    "float": float,
    "complex": lambda parts: complex(from_json(parts[0]), from_json(parts[1])),
    "bytes": base64.b64decode,
    "dtype": lambda name: torch.empty(0, dtype=vars(torch)[name], device="meta").dtype,
    "device": torch.device,
    "size": torch.Size,
    "numpy": lambda parts: np.dtype(_numpy(parts[0])).type(from_json(parts[1])),
    "tuple": lambda parts: tuple(map(from_json, parts)),
    "dict": lambda items: {from_json(k): from_json(v) for k, v in items},
}


def to_json(value: object) -> object:
    """Returns a form of a value that JSON takes and `from_json` brings back.

    Args:
        value: None, numbers (Python's and numpy's), strings, bytes, dtypes, devices,
            sizes, and lists, tuples and dicts of them.

    Raises:
        TypeError: It is something else, be it derived from one of these.

    Example:
        >>> to_json({"seen": 3, "loss": float("inf"), "rng": b"ab"})
        {'$': 'dict', 'v': [['seen', 3], ['loss', {'$': 'float', 'v': 'inf'}], \
['rng', {'$': 'bytes', 'v': 'YWI='}]]}
        >>> from_json(to_json((1, float("-inf"), {2: None})))
        (1, -inf, {2: None})
    """
    # Of a derived class, such as an enum's, only what it is derived from would be left.
    kind = type(value)
    if value is None or kind in {bool, int, str}:
        return value
    if isinstance(value, np.generic):
        return _tagged("numpy", [_numpy(numpy_kind(value)), to_json(value.item())])
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else _tagged("float", repr(value))
    if isinstance(value, list) and kind is list:
        return [to_json(part) for part in value]
    if isinstance(value, torch.Size):
        return _tagged("size", list(value))
    if isinstance(value, tuple) and kind is tuple:
        return _tagged("tuple", [to_json(part) for part in value])
    if isinstance(value, dict) and kind is dict:
        items = [[to_json(key), to_json(part)] for key, part in value.items()]
        return _tagged("dict", items)
    if isinstance(value, complex) and kind is complex:
        return _tagged("complex", [to_json(value.real), to_json(value.imag)])
    if isinstance(value, bytes) and kind is bytes:
        return _tagged("bytes", base64.b64encode(value).decode())
    if isinstance(value, torch.dtype):
        return _tagged("dtype", str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return _tagged("device", str(value))
    message = f"a checkpoint holds no {type(value).__name__}"
    raise TypeError(message)


def from_json(value: object) -> Any:
    """Returns the value that `to_json` was given.

    Raises:
        ValueError: It is not such a form.
    """
    if isinstance(value, list):
        return [from_json(part) for part in value]
    if isinstance(value, dict):
        # What is given to them may be anything, and nested as deep as JSON may be.
        with contextlib.suppress(ArithmeticError, LookupError, RuntimeError, TypeError):
            if value.keys() == {_TAG, "v"}:
                return _DECODERS[value[_TAG]](value["v"])
        message = f"not the form of a value: {reprlib.repr(value)}"
        raise ValueError(message)
    return value


def _numpy(name: str) -> str:
    """Returns the name of a kind of numpy's numbers, if it has a form.

    Raises:
        TypeError: It has none.
    """
    if not NUMPY.fullmatch(name):
        message = f"a checkpoint holds no {name} of numpy"
        raise TypeError(message)
    return name


def _tagged(tag: str, value: object) -> dict[str, object]:
    return {_TAG: tag, "v": value}
