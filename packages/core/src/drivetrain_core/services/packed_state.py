"""What a checkpoint holds of a state: tensors by name, and the plain half of each entry.

Checkpointers share this, so that what one of them saved another can be taught to read,
and so that all refuse the same states with the same words. A model is held by canonical
names and an optimizer by the names of its parameters, so that both fit however they are
wrapped and sharded. Other objects are held by their `state_dict`, and plain data as it
is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

RECORD = "drivetrain.record"
"""The name under which the plain half of a state is stored; no entry may have it."""

Entry = dict[str, Any]
"""The plain half of one entry: its kind, the names of its tensors, its plain values."""


@dataclass(frozen=True, slots=True)
class PackedState:
    """A state as a checkpoint holds it.

    What packs again and again may hand out the same dictionaries, so they are to be read
    only.

    Args:
        tensors: The tensors by name, sharing memory with the live state.
        entries: The plain half of each entry. One that `is_partial` is this rank's, and
            is merged with those of the others by `merge_entries`.
    """

    tensors: dict[str, torch.Tensor]
    entries: dict[str, Entry]
