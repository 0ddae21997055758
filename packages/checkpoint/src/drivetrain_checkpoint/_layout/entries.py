"""Entries of a checkpoint: the plain half of a state, read from what files say."""

from __future__ import annotations

import pickle
import re
import reprlib
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._errors import CorruptCheckpointError
from drivetrain_checkpoint._fields import MISSHAPEN
from drivetrain_checkpoint._layout.rank_entries import RANKS
from drivetrain_core.extending import join_tree
from drivetrain_core.services.plain_json import from_json

if TYPE_CHECKING:
    from drivetrain_core.services.packed_state import Entry

_TREES = frozenset({"data", "object", "model", "optimizer", "state_dict"})
"""The kinds whose plain half core itself puts together; the others have forms of their own."""

_SLOT = re.compile(r"param_groups\.\d{1,9}\..*|(?!param_groups\b).*", re.DOTALL)
"""What an optimizer's state is named: an option has the number of its group."""

_NOTHING: Any = None


def read_entries(plain: object, name: str) -> dict[str, Entry]:
    """Returns the entries of a state, whose forms are those that are put back.

    Args:
        plain: The entries as JSON, as a file says.
        name: What is said to have them, if they are none.

    Raises:
        CorruptCheckpointError: They are none.

    Example:
        >>> read_entries({"$": "dict", "v": [["lr", 0.1]]}, "step 3")
        Traceback (most recent call last):
        ...
        drivetrain_checkpoint._errors.CorruptCheckpointError: step 3 has no entries of \
a state: 'lr' must not be 0.1
    """
    try:
        entries: dict[str, Any] = from_json(plain)
        for key, entry in entries.items():
            if not _are_texts([key]) or not _is_entry(key, entry):
                message = f"{key!r:.40} must not be {reprlib.repr(entry)}"
                raise ValueError(message)
    except MISSHAPEN as error:
        message = f"{name} has no entries of a state: {error}"
        raise CorruptCheckpointError(message) from error
    return entries


def _is_entry(key: str, entry: Any) -> bool:
    """Whether something has the fields of an entry; raises if its tree is none."""
    if not isinstance(entry, dict) or not {"kind", "plain", "tensors"} <= entry.keys():
        return False
    kind, names, groups = entry["kind"], entry["tensors"], entry.get("groups")
    if kind == RANKS:
        of, (_, plains) = entry.get("of"), entry["plain"]
        every = [{**entry, "kind": of, "plain": plain} for plain in plains]
        return of in {"data", "object"} and all(_is_entry(key, one) for one in every)
    ties = entry.get("ties", {})
    if not isinstance(ties, dict) or not _are_texts([*ties, *ties.values()]):
        return False
    if not _are_texts([kind]) or not _are_texts(names) or kind not in _TREES:
        return _are_texts([kind]) and _are_texts(names)
    try:
        tree = join_tree(entry["plain"], dict.fromkeys(names, _NOTHING))
    except pickle.UnpicklingError:
        return True  # whoever asks for it is told which class is not allowed
    if kind in {"data", "object"}:
        return True
    if not isinstance(tree, dict) or not _are_texts(list(tree)):
        return False
    bare = (name.removeprefix(f"{key}.") for name in (*names, *tree))
    return kind in {"model", "state_dict"} or (
        isinstance(groups, list)
        and all(map(_are_texts, groups))
        and all(map(_SLOT.fullmatch, bare))
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)
