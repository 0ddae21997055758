"""Packs a state for a checkpoint, and does again only what changed since the last time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from drivetrain_checkpoint._save.detached_tensors import DetachedTensors
from drivetrain_core.extending import (
    TENSORS,
    NamedModel,
    PackedEntry,
    merge_tensors,
    pack_entry,
)
from drivetrain_core.services import PackedState

if TYPE_CHECKING:
    from collections.abc import Mapping


class StatePacker:
    """Packs a state again and again, as `pack_state` would, at a fraction of the time.

    What a state is made of is compared with the last time by identity: modules,
    parameters, buffers, groups, the values in containers, and where each tensor lies in
    memory. Only what differs is packed anew, and all else is handed out again:

    - `tensors` is the same dictionary if all names and all tensors are the same;
    - each tensor that lies where it lay, with the same shape and dtype, is the same
      object, also if others changed (`PackedState.changed_since` tells which);
    - each entry that is equal is the same object, and `entries` is the same dictionary
      if all of them are; in an optimizer's entry that changed by its options, `tensors`
      and `groups` are the same lists.

    Tensors of classes other than `torch.Tensor`, `Parameter` and `DTensor`, and those
    that have no strides (sparse ones), are new objects each time.

    It holds on to the state that it packed last. Not thread-safe. A state that is
    refused leaves the packer as it was.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> packer = StatePacker()
        >>> one = packer.pack({"model": model, "position": 7})
        >>> two = packer.pack({"model": model, "position": 8})
        >>> two.tensors is one.tensors, two.entries["model"] is one.entries["model"]
        (True, True)
        >>> two.entries["position"]
        {'kind': 'data', 'plain': ['value', 8], 'tensors': []}
    """

    def __init__(self) -> None:
        self._models: dict[str, NamedModel] = {}
        self._names: dict[int, str] = {}
        self._entries: dict[str, PackedEntry] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        self._detached = DetachedTensors({})
        self._packed = PackedState(self._detached.copies, {})

    def pack(self, state: Mapping[str, object]) -> PackedState:
        """Returns a state as a checkpoint holds it; nothing is copied.

        Args:
            state: As for `pack_state`, and so are the errors.
        """
        models = self._named_models(state)
        names = self._names
        if any(models[k] is not self._models.get(k) for k in models) or (
            list(models) != list(self._models)
        ):
            found = {i: n for model in models.values() for i, n in model.names.items()}
            names = names if found == names else found
        entries = self._pack_entries(state, models, names)
        same_keys = list(entries) == list(self._entries)
        pairs = zip(entries.values(), self._entries.values(), strict=same_keys)
        others = [(new, old) for new, old in pairs if new is not old]
        tensors = self._tensors
        if not same_keys or any(list(n.tensors) != list(o.tensors) for n, o in others):
            tensors = merge_tensors(entries.values())
        elif any(new.tensors is not old.tensors for new, old in others):
            tensors = tensors.copy()
            for new, _ in others:
                tensors.update(new.tensors)
        detached = self._detached.renewed(tensors)
        packed = self._packed
        plain = packed.entries
        if not same_keys or any(new.entry is not old.entry for new, old in others):
            plain = {key: entry.entry for key, entry in entries.items()}
        if plain is not packed.entries or detached is not self._detached:
            packed = PackedState(detached.copies, plain)
        self._models, self._names, self._entries = models, names, entries
        self._tensors, self._detached, self._packed = tensors, detached, packed
        return packed

    def _named_models(self, state: Mapping[str, object]) -> dict[str, NamedModel]:
        models = {}
        for key, value in state.items():
            if isinstance(value, nn.Module):
                old = self._models.get(key)
                if old is None or not old.fits(value):
                    old = NamedModel(key, value)
                models[key] = old
        return models

    def _pack_entries(
        self,
        state: Mapping[str, object],
        models: Mapping[str, NamedModel],
        names: Mapping[int, str],
    ) -> dict[str, PackedEntry]:
        known = self._entries
        entries: dict[str, PackedEntry] = {}
        for key, value in state.items():
            old = known.get(key)
            # Of an entry that is a tensor there is nothing else to be asked.
            if old is not None and old.value is value and type(value) in TENSORS:
                entries[key] = old
                continue
            entries[key] = pack_entry(key, value, models, names, old, state)
        return entries
