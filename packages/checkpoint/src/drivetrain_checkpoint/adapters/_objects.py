"""Objects in other libraries' checkpoints that are neither tensors nor plain data."""

from __future__ import annotations

import collections
import pickle
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

Objects = Literal["refuse", "pickle"]
"""What becomes of an object that is neither a tensor nor plain data."""

_KEY = "drivetrain.pickle"
_SCALARS = {type(None), bool, int, float, complex, str, bytes, torch.Size}
_PLAIN = (torch.Tensor, np.generic, torch.dtype, torch.device)


def hold(value: object, name: str, objects: Objects) -> Any:
    """Returns a value in a form that a checkpoint holds.

    Args:
        value: The value; its dicts, lists and tuples are copied, its tensors are not.
        name: What messages call it.
        objects: Whether an object of any other type is an error, or is pickled.

    Raises:
        TypeError: There is such an object, and it is not to be pickled.

    Example:
        >>> hold({"rate": 0.1, "span": range(3)}, "settings", "refuse")
        Traceback (most recent call last):
        TypeError: settings.span is of type range, which a checkpoint holds only as a \
pickle: leave it out, or say objects='pickle' and load only checkpoints that you trust
        >>> release(hold([range(3)], "settings", "pickle"), "settings", trusted=True)
        [range(0, 3)]
    """

    def change(leaf: object, path: str) -> object:
        # What is derived from a number or a string, as an enum is, is another object.
        is_held = type(leaf) in _SCALARS or isinstance(leaf, _PLAIN)
        if is_held:
            return leaf
        if objects == "refuse":
            message = (
                f"{path} is of type {type(leaf).__name__}, which a checkpoint holds "
                "only as a pickle: leave it out, or say objects='pickle' and load only "
                "checkpoints that you trust"
            )
            raise TypeError(message)
        return {_KEY: pickle.dumps(leaf)}

    return each(value, name, change)


def release(value: object, name: str, *, trusted: bool) -> Any:
    """Returns the value that `hold` was given.

    Args:
        value: What `hold` returned.
        name: What messages call it.
        trusted: Whether pickles are loaded, which runs whatever code is in them.

    Raises:
        CheckpointError: There is a pickle, and it is not trusted.
    """

    def change(leaf: object, path: str) -> object:
        if not isinstance(leaf, dict):
            return leaf
        if not trusted:
            message = (
                f"{path} was saved as a pickle, which can run any code: say "
                "objects='pickle' if you trust the checkpoint"
            )
            raise CheckpointError(message)
        return pickle.loads(leaf[_KEY])

    return each(value, name, change)


def each(value: object, name: str, change: Callable[[object, str], object]) -> Any:
    """Returns a tree of dicts, lists and tuples with every leaf changed.

    Args:
        value: The tree. Dicts become plain or ordered ones; that of a pickle is a leaf.
        name: The name of the tree, which those of its leaves begin with.
        change: Returns what takes the place of a leaf, by its name.

    Example:
        >>> each({"a": [1, 2], "b": (3,)}, "it", lambda leaf, path: path)
        {'a': ['it.a.0', 'it.a.1'], 'b': ('it.b.0',)}
    """
    if isinstance(value, dict) and value.keys() != {_KEY}:
        items = {k: each(v, f"{name}.{k}", change) for k, v in value.items()}
        is_ordered = isinstance(value, collections.OrderedDict)
        return collections.OrderedDict(items) if is_ordered else items
    # A named tuple is a leaf: reading it back needs its class.
    if type(value) in {list, tuple}:
        assert isinstance(value, list | tuple)
        parts = [each(v, f"{name}.{i}", change) for i, v in enumerate(value)]
        return parts if isinstance(value, list) else tuple(parts)
    return change(value, name)
