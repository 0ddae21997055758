"""Packs a state for a checkpoint: tensors by name, and the plain half of each entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from drivetrain_core.services._packed_entry import NamedModel, merge_tensors, pack_entry
from drivetrain_core.services.packed_state import PackedState

if TYPE_CHECKING:
    from collections.abc import Mapping


def pack_state(state: Mapping[str, object]) -> PackedState:
    """Returns a state as a checkpoint holds it; nothing is copied.

    Args:
        state: Models, optimizers, tensors, objects with `state_dict` and
            `load_state_dict`, and plain data, by name.

    Raises:
        TypeError: Something in the state is of a type that a checkpoint cannot hold.
        ValueError: Two tensors have one name.
        NamesError: The tensors of a model or an optimizer have no clear names.

    Example:
        >>> packed = pack_state({"model": nn.Linear(2, 1), "position": 7})
        >>> list(packed.tensors)
        ['model.weight', 'model.bias']
        >>> packed.entries["position"]
        {'kind': 'data', 'plain': ['value', 7], 'tensors': []}
    """
    models = {k: NamedModel(k, v) for k, v in state.items() if isinstance(v, nn.Module)}
    names = {i: name for model in models.values() for i, name in model.names.items()}
    packed = {k: pack_entry(k, v, models, names, None, state) for k, v in state.items()}
    return PackedState(
        {name: t.detach() for name, t in merge_tensors(packed.values()).items()},
        {key: entry.entry for key, entry in packed.items()},
    )
