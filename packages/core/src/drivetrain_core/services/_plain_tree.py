"""Splits nested plain data from the tensors in it, and puts the two together again.

The plain half is made of lists, strings and numbers only, so that `torch.load` reads it
with `weights_only`.
"""

from __future__ import annotations

import io
import pickle
import re
from collections import Counter, OrderedDict, defaultdict
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from drivetrain_core._errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_MAPPINGS: dict[str, Callable[[Mapping[Any, object]], object]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": Counter,
}
# Those of one more class could not be told from these when they are read back.
_SCALARS = (bool, int, float, complex, str, bytes)
_FACTORIES: dict[str | None, type | None] = {
    None: None,
    **{k.__name__: k for k in (bool, int, float, str, list, tuple, dict, set)},
}
NUMPY = re.compile(r"bool|str|bytes|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)")
"""The kinds of numpy's numbers that a checkpoint can hold."""

_MOST_LEVELS = 64
"""How deep a state may be nested: JSON and recursion have room for some 200."""


class _ClassNotAllowedError(CheckpointError, pickle.UnpicklingError):
    """A value in a checkpoint is of a class that is not read without leave."""


def split_tree(value: object, name: str, tensors: dict[str, torch.Tensor]) -> object:
    """Returns the plain half of a value, and collects the tensors in it.

    Args:
        value: Nested dicts, lists and tuples of tensors, numbers (Python's and
            numpy's), strings, bytes, dtypes, devices, sizes, None, `io.BytesIO`, and
            whatever else `torch.load` takes with `weights_only`.
        name: What it is called; the tensors in it are called `name.key.key`.
        tensors: Where the tensors go, as they are, by name.

    Raises:
        TypeError: Something in it is of another type, be it derived from one of these.
        ValueError: Two tensors have one name, or the value is nested too deep, as one
            that contains itself is.

    Example:
        >>> tensors = {}
        >>> plain = split_tree({"seen": 3, "rng": torch.ones(1)}, "data", tensors)
        >>> plain
        ['dict', [['seen', ['value', 3]], ['rng', ['tensor', 'data.rng']]]]
        >>> join_tree(plain, tensors)
        {'seen': 3, 'rng': tensor([1.])}
    """
    return _split(value, name, tensors, [])


def join_tree(plain: object, tensors: Mapping[str, torch.Tensor]) -> object:
    """Returns the value that `split_tree` split.

    Args:
        plain: The plain half.
        tensors: The tensors by name.

    Raises:
        ValueError: It is not a plain half.
        CheckpointError: It holds an object of a class that is not allowed.
    """
    match plain:
        case ["value", value]:
            return value
        case ["tensor", str(name)] if name in tensors:
            return tensors[name]
        case ["numpy", [str(kind), value]] if NUMPY.fullmatch(kind):
            return np.dtype(kind).type(value)
        case ["size", list(sizes)]:
            return torch.Size(sizes)
        case ["torch", bytes(data)]:
            return unpickled(data)
        case ["list", list(parts)]:
            return [join_tree(part, tensors) for part in parts]
        case ["tuple", list(parts)]:
            return tuple(join_tree(part, tensors) for part in parts)
        case ["defaultdict", [factory, list(items)]] if factory in _FACTORIES:
            found = {k: join_tree(v, tensors) for k, v in items}
            return defaultdict(_FACTORIES[factory], found)
        case [str(kind), list(items)] if kind in _MAPPINGS:
            return _MAPPINGS[kind]({k: join_tree(v, tensors) for k, v in items})
    message = f"not the plain half of a value: {plain!r:.80}"
    raise ValueError(message)


def tensor_names(plain: object) -> set[str]:
    """Returns the names of the tensors that belong into a plain half.

    Args:
        plain: The plain half.

    Example:
        >>> tensor_names(["list", [["value", 1], ["tensor", "data.1"]]])
        {'data.1'}
    """
    return {str(name) for kind, name in _leaves(plain) if kind == "tensor"}


def is_pickled(plain: object) -> bool:
    """Says whether a plain half has a copy of something that may change meanwhile."""
    return any(kind == "torch" for kind, _ in _leaves(plain))


def _leaves(plain: object) -> Iterator[tuple[object, object]]:
    match plain:
        case ["list" | "tuple", list(parts)]:
            yield from chain.from_iterable(map(_leaves, parts))
        case ["defaultdict", [_, list(items)]]:
            yield from chain.from_iterable(_leaves(part) for _, part in items)
        case [str(kind), list(items)] if kind in _MAPPINGS:
            yield from chain.from_iterable(_leaves(part) for _, part in items)
        case [kind, value]:
            yield kind, value


def equal_plain(one: object, other: object) -> bool:
    """Says whether two plain halves would be written alike.

    Unlike `==`, it tells 1 from True and 1.0, and 0.0 from -0.0; NaN equals NaN.

    Args:
        one: What `split_tree` returned, or a dict of it.
        other: Another.

    Example:
        >>> equal_plain([1, float("nan")], [1, float("nan")]), equal_plain([1], [1.0])
        (True, False)
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return equal_plain(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(equal_plain, one, other))
    if isinstance(one, float | complex):
        return repr(one) == repr(other)
    return one == other


def _split(
    value: object,
    name: str,
    tensors: dict[str, torch.Tensor],
    within: list[tuple[object, str]],
) -> object:
    """Does what `split_tree` does, inside of some containers and their names."""
    if isinstance(value, torch.Tensor) and not (value.is_sparse or value.is_quantized):
        if name in tensors:
            message = f"two tensors of the state are named {name!r}"
            raise ValueError(message)
        tensors[name] = value
        return ["tensor", name]
    if isinstance(value, np.generic) and NUMPY.fullmatch(numpy_kind(value)):
        return ["numpy", [numpy_kind(value), value.item()]]
    kind = type(value)
    if kind is torch.Size:
        assert isinstance(value, torch.Size)
        return ["size", list(value)]
    # A named tuple is not here: reading it back would need its class.
    is_sequence = kind is list or kind is tuple
    if not is_sequence and not isinstance(value, dict):
        return plain_leaf(value, name)
    if len(within) == _MOST_LEVELS:
        raise ValueError(_depth(value, name, within))
    within.append((value, name))
    plain: object
    if isinstance(value, dict):
        for key in value:
            if not _is_plain(key):
                raise TypeError(_refusal(key, f"a key of {name}"))
        items = [
            [
                key,
                _split(v, f"{name}.{key}", tensors, within),
            ]
            for key, v in value.items()
        ]
        plain = _mapping(value, name, items)
    else:
        assert isinstance(value, list | tuple)
        parts = [_split(v, f"{name}.{i}", tensors, within) for i, v in enumerate(value)]
        plain = [kind.__name__, parts]
    within.pop()
    return plain


def _mapping(
    value: dict[Any, object], name: str, items: list[list[object]]
) -> list[object]:
    kind = type(value)
    if isinstance(value, defaultdict) and kind is defaultdict:
        for factory, made in _FACTORIES.items():
            if value.default_factory is made:
                return ["defaultdict", [factory, items]]
        message = (
            f"{name} is a defaultdict of {value.default_factory!r}, which a checkpoint "
            "cannot hold: save dict(...) of it, or one of a built-in type"
        )
        raise TypeError(message)
    known: object = _MAPPINGS.get(kind.__name__)
    if known is kind:
        return [kind.__name__, items]
    raise TypeError(_refusal(value, name))


def plain_leaf(value: object, name: str) -> list[object]:
    """Returns the plain half of a value that is no container of others.

    Args:
        value: The value. One that only pickle can hold is held so if `torch.load` reads
            it again with `weights_only`, which runs no code.
        name: What it is called.

    Raises:
        TypeError: It is of a type that would not be read again.

    Example:
        >>> join_tree(plain_leaf(io.BytesIO(b"scales"), "model.fp8"), {}).read()
        b'scales'
    """
    if _is_plain(value):
        return ["value", value]
    stream = io.BytesIO()
    try:
        torch.save(value, stream)
        unpickled(stream.getvalue())
    # Objects raise almost anything when they are pickled.
    except Exception as error:
        raise TypeError(_refusal(value, name)) from error
    return ["torch", stream.getvalue()]


def unpickled(data: bytes) -> Any:
    """Returns a value that `torch.save` wrote; no code is run that the bytes name.

    Raises:
        CheckpointError: It holds an object of a class that is not allowed.
    """
    try:
        with torch.serialization.safe_globals([io.BytesIO]):
            return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        found = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(data))
        message = (
            f"the checkpoint holds an object that is not read without leave: {found}. If "
            "you trust it, allow its class with torch.serialization.add_safe_globals"
        )
        raise _ClassNotAllowedError(message) from error


def _is_plain(value: object) -> bool:
    known = type(value) in _SCALARS or isinstance(value, torch.dtype | torch.device)
    return value is None or known


def numpy_kind(value: np.generic[Any]) -> str:
    """Returns the kind of one of numpy's numbers, whatever its length."""
    return {"U": "str", "S": "bytes"}.get(value.dtype.kind, value.dtype.name)


def _refusal(value: object, name: str) -> str:
    """Returns why a value cannot be held."""
    what = f"{name} is of type {type(value).__name__}, which a checkpoint cannot hold"
    if isinstance(value, Enum):
        return f"{what}, since it needs its class: save its value or its name"
    for plain in (*_SCALARS, dict):
        if isinstance(value, plain):
            return f"{what}: it would come back as {plain.__name__}, so save that of it"
    return (
        f"{what}: use tensors, numbers, strings, bytes, dicts, lists and tuples; give "
        "the object state_dict() and load_state_dict(); or allow its class with "
        "torch.serialization.add_safe_globals, here and where it is restored"
    )


def _depth(value: object, name: str, within: list[tuple[object, str]]) -> str:
    """Returns what is wrong with a value that lies too deep."""
    open_ = [*within, (value, name)]
    for number, (outer, place) in enumerate(open_):
        inner = next((where for v, where in open_[number + 1 :] if v is outer), None)
        if inner:
            return f"{place} contains itself, as {inner}: break the cycle"
    return (
        f"{within[0][1]} is nested more than {_MOST_LEVELS} levels deep, which a "
        "checkpoint cannot hold: make it flatter"
    )
