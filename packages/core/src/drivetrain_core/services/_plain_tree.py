"""Splits nested plain data from the tensors in it, and puts the two together again.

The plain half is made of lists, strings and numbers only, so that `torch.load` reads it
with `weights_only`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["equal_plain", "join_tree", "split_tree", "tensor_names"]

_MAPPINGS: dict[str, Callable[[Mapping[Any, object]], object]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": Counter,
}
# What a subclass (numpy's float64, an enum) is written as: reading it back as itself
# would need its class.
_SCALARS: dict[type, Callable[[Any], object]] = {
    bool: bool,
    int: int,
    float: float,
    complex: complex,
    str: str.__str__,
    bytes: bytes,
}


def split_tree(value: object, name: str, tensors: dict[str, torch.Tensor]) -> object:
    """Returns the plain half of a value, and collects the tensors in it.

    Args:
        value: Nested dicts, lists and tuples of tensors, numbers, strings, bytes,
            dtypes, devices and None.
        name: What it is called; the tensors in it are called `name.key.key`.
        tensors: Where the tensors go, as they are, by name.

    Raises:
        TypeError: Something in it is of another type.
        ValueError: Two tensors have one name.

    Example:
        >>> tensors = {}
        >>> plain = split_tree({"seen": 3, "rng": torch.ones(1)}, "data", tensors)
        >>> plain
        ['dict', [['seen', ['value', 3]], ['rng', ['tensor', 'data.rng']]]]
        >>> join_tree(plain, tensors)
        {'seen': 3, 'rng': tensor([1.])}
    """
    if isinstance(value, torch.Tensor):
        if name in tensors:
            message = f"two tensors of the state are named {name!r}"
            raise ValueError(message)
        tensors[name] = value
        return ["tensor", name]
    if isinstance(value, dict):
        kind = type(value).__name__
        known: object = _MAPPINGS.get(kind)
        kind = kind if known is type(value) else "dict"
        items = [
            [
                key if type(key) is str else _plain(key, f"a key of {name}"),
                split_tree(v, f"{name}.{key}", tensors),
            ]
            for key, v in value.items()
        ]
        return [kind, items]
    # A named tuple is not here: reading it back would need its class.
    if type(value) in {list, tuple, torch.Size}:
        kind = "list" if isinstance(value, list) else "tuple"
        assert isinstance(value, list | tuple)
        parts = [split_tree(v, f"{name}.{i}", tensors) for i, v in enumerate(value)]
        return [kind, parts]
    return ["value", _plain(value, name)]


def join_tree(plain: object, tensors: Mapping[str, torch.Tensor]) -> object:
    """Returns the value that `split_tree` split.

    Args:
        plain: The plain half.
        tensors: The tensors by name.

    Raises:
        ValueError: It is not a plain half.
    """
    match plain:
        case ["value", value]:
            return value
        case ["tensor", str(name)] if name in tensors:
            return tensors[name]
        case ["list", list(parts)]:
            return [join_tree(part, tensors) for part in parts]
        case ["tuple", list(parts)]:
            return tuple(join_tree(part, tensors) for part in parts)
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
    match plain:
        case ["tensor", str(name)]:
            return {name}
        case ["list" | "tuple", list(parts)]:
            return set().union(*map(tensor_names, parts))
        case [str(kind), list(items)] if kind in _MAPPINGS:
            return set().union(*(tensor_names(part) for _, part in items))
    return set()


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


def _plain(value: object, name: str) -> object:
    if value is None or isinstance(value, torch.dtype | torch.device):
        return value
    for kind, convert in _SCALARS.items():
        if isinstance(value, kind):
            return value if type(value) is kind else convert(value)
    message = (
        f"{name} is of type {type(value).__name__}, which a checkpoint cannot hold: use "
        "tensors, numbers, strings, bytes, dicts, lists and tuples, or give the object "
        "state_dict() and load_state_dict()"
    )
    raise TypeError(message)
