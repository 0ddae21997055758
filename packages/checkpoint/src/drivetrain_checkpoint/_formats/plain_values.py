"""Values of a DCP state that are no tensors: as JSON, or else as torch saves them."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core import CheckpointError
from drivetrain_core.services.plain_json import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_core.services.packed_state import Entry

MAPPINGS = "drivetrain.dcp.mappings"
"""The entry that says where each flat name stands in the nested state."""


_VALUES = {"value", "numpy"}


def entry_of_tensor(name: str) -> Entry:
    """Returns the plain half of a tensor."""
    return {"kind": "data", "plain": ["tensor", name], "tensors": [name]}


def entry_of_value(value: object) -> Entry:
    """Returns the plain half of anything else.

    Raises:
        TypeError: torch cannot save it either, or would not load it again.

    Example:
        >>> entry_of_value({"seen": 3})["kind"], entry_of_value({3, 4})["kind"]
        ('data', 'torch')
        >>> value_of("a", entry_of_value({3, 4}))
        {3, 4}
    """
    try:
        to_json(value)
    except TypeError:
        stream = io.BytesIO()
        try:
            torch.save(value, stream)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            message = f"a {type(value).__name__} cannot be saved: {error}"
            raise TypeError(message) from error
        try:
            _load(stream.getvalue())
        except pickle.UnpicklingError as error:
            message = (
                f"a {type(value).__name__} would be saved by pickle, and not loaded again, "
                "since that runs code. Save it as tensors, numbers, strings, lists and "
                "dicts; or allow its class with torch.serialization.add_safe_globals, "
                "here and where it is loaded"
            )
            raise TypeError(message) from error
        return {"kind": "torch", "plain": ["value", stream.getvalue()], "tensors": []}
    return {"kind": "data", "plain": ["value", value], "tensors": []}


def is_value(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is a value, with no tensor in it."""
    plain = entry["plain"]
    return isinstance(plain, list) and len(plain) == 2 and plain[0] in _VALUES


def value_of(name: str, entry: Mapping[str, Any]) -> Any:
    """Returns the value of an entry; no code is run that the checkpoint names.

    Args:
        name: The entry's name.
        entry: The entry, out of its JSON form.

    Raises:
        CheckpointError: It holds an object of a class that is not allowed.
    """
    form, value = entry["plain"]
    if form == "numpy":  # of a `Checkpointer`: the kind of number, and the number
        return value[1]
    if entry["kind"] != "torch":
        return value
    try:
        return _load(value)
    except pickle.UnpicklingError as error:
        message = (
            f"{name} holds an object that is not read without leave: {error}. If you "
            "trust the checkpoint, allow its class with "
            "torch.serialization.add_safe_globals"
        )
        raise CheckpointError(message) from error


def _load(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
