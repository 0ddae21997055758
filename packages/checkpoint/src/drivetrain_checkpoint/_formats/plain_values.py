"""Values of a DCP state that are no tensors: as JSON, or else as torch saves them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core.extending import plain_leaf, unpickled
from drivetrain_core.services.plain_json import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_core.services.packed_state import Entry

MAPPINGS = "drivetrain.dcp.mappings"
"""The entry that says where each flat name stands in the nested state."""


_VALUES = {"value", "numpy", "torch"}


def entry_of_tensor(name: str) -> Entry:
    """Returns the plain half of a tensor."""
    return {"kind": "data", "plain": ["tensor", name], "tensors": [name]}


def entry_of_value(value: object, name: str = "it") -> Entry:
    """Returns the plain half of anything else.

    Args:
        value: The value.
        name: What messages call it.

    Raises:
        TypeError: torch cannot save it either, or would not load it again.

    Example:
        >>> entry_of_value({"seen": 3})["plain"], entry_of_value({3, 4})["plain"][0]
        (['value', {'seen': 3}], 'torch')
        >>> value_of(entry_of_value({3, 4}))
        {3, 4}
    """
    try:
        to_json(value)
    except TypeError:
        return {"kind": "data", "plain": plain_leaf(value, name), "tensors": []}
    return {"kind": "data", "plain": ["value", value], "tensors": []}


def is_value(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is a value, with no tensor in it."""
    plain = entry["plain"]
    return isinstance(plain, list) and len(plain) == 2 and plain[0] in _VALUES


def value_of(entry: Mapping[str, Any]) -> Any:
    """Returns the value of an entry, out of its JSON form.

    Raises:
        CheckpointError: It holds an object of a class that is not allowed.
    """
    form, value = entry["plain"]
    if form == "numpy":  # of a `Checkpointer`: the kind of number, and the number
        return value[1]
    return unpickled(value) if form == "torch" or entry["kind"] == "torch" else value
