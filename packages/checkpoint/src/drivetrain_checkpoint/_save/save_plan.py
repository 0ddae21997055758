"""Save plan: what a rank saves of a state, and where it goes, for all saves alike.

The layout, the image, the place of each tensor in it and the JSON that says so depend
on the tensors' names, shapes and places alone, which hardly ever change in a run.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_checkpoint._layout.partition import (
    check_savable,
    is_plain_memory,
    layout_of,
    local_block,
)
from drivetrain_checkpoint._layout.safetensors_layout import plan_safetensors
from drivetrain_core.native_library import address_of
from drivetrain_core.services.plain_json import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from drivetrain_checkpoint._layout.safetensors_layout import SafetensorsLayout, Slot
    from drivetrain_checkpoint._layout.tensor_layout import Layout
    from drivetrain_checkpoint._rank_group import RankGroup


class SavePlan:
    """Who saves what of some tensors, and where this rank's part goes.

    Args:
        tensors: The tensors by name, the same on each rank.
        group: The ranks that save together.

    Raises:
        TypeError: A tensor cannot be saved.
    """

    def __init__(self, tensors: Mapping[str, Tensor], group: RankGroup) -> None:
        """Makes the plan."""
        self._rank = rank = group.rank
        self.layout: Layout = layout_of(tensors, group.world_size, group.process_group)
        self.layout_text = _text(self.layout.to_plain())
        self.digest = hashlib.sha256(self.layout_text.encode()).hexdigest()
        self._key = _key_of(tensors)
        self._tensors = tensors
        self._blocks = {
            entry.name: block
            for entry in self.layout.tensors
            if (block := local_block(self.layout, entry, tensors[entry.name], rank))
            is not None
        }
        codes = {entry.name: entry.dtype for entry in self.layout.tensors}
        self.image: SafetensorsLayout = plan_safetensors(
            (name, codes[name], tuple(block.shape))
            for name, block in self._blocks.items()
        )
        self._find_sources()

    def renew(self, tensors: Mapping[str, Tensor]) -> bool:
        """Takes over tensors that are laid out like those before.

        A tensor that is the same object is laid out as it was; its memory may be another.

        Returns:
            Whether they are; if not, a new plan must be made.

        Raises:
            TypeError: One of them cannot be saved.
        """
        before = self._tensors
        if tensors is before:
            self._follow_sources()
            return True
        if tensors.keys() != before.keys():
            return False
        changed = {n: t for n, t in tensors.items() if t is not before[n]}
        for name, tensor in changed.items():
            check_savable(name, tensor)
        if _key_of(changed) != {name: self._key[name] for name in changed}:
            return False
        for entry in self.layout.tensors:
            if entry.name in changed and entry.name in self._blocks:
                tensor = changed[entry.name]
                block = local_block(self.layout, entry, tensor, self._rank)
                assert block is not None
                self._blocks[entry.name] = block
        self._tensors = tensors
        if not changed.keys().isdisjoint(self._blocks):
            self._find_sources()
        else:
            self._follow_sources()
        return True

    def versions(self) -> int:
        """Returns a number that grows when one of the tensors is changed in place."""
        return sum(block._version for block in self._blocks.values())

    def _follow_sources(self) -> None:
        """Finds the sources anew where the memory of a tensor was moved, or freed."""
        if list(map(torch.Tensor.data_ptr, self._plain)) != self._addresses:
            self._find_sources()

    def _find_sources(self) -> None:
        plain: list[tuple[Tensor, Slot]] = []
        others: list[tuple[Tensor, Slot]] = []
        for slot in self.image.slots:
            block = self._blocks[slot.name]
            (plain if is_plain_memory(block) else others).append((block, slot))
        self._addresses = [address_of(tensor, slot.name) for tensor, slot in plain]
        self.sources = array("Q", self._addresses)
        self._plain = [block for block, _ in plain]
        self.offsets = array("Q", [slot.start for _, slot in plain])
        self.sizes = array("Q", [slot.size_bytes for _, slot in plain])
        # What one copy of memory cannot do: on a device, or with gaps.
        self.others = [(block, slot) for block, slot in others if slot.size_bytes]


class EntryTexts:
    """The plain half of each entry as JSON, made anew only where it changed."""

    def __init__(self) -> None:
        """Knows no entry yet."""
        self._entries: Mapping[str, Any] = {}
        self._texts: dict[str, str] = {}
        self._text = ""

    def text(self, entries: Mapping[str, Any]) -> str:
        """Returns all entries as the JSON of one mapping.

        Args:
            entries: The entries; one that is the same object as before is the same.

        Raises:
            TypeError: One holds what JSON cannot.
        """
        if self._text and entries is self._entries:
            return self._text
        before = self._entries
        if list(entries) == list(before):
            pairs = zip(entries.items(), before.values(), strict=True)
            fresh = {key: new for (key, new), old in pairs if new is not old}
            texts = dict(self._texts)
        else:
            fresh, texts = dict(entries), dict.fromkeys(entries, "")
        for key, entry in fresh.items():
            texts[key] = f"[{_text(key)},{_text(to_json(entry))}]"
        self._text = f'{{"$":"dict","v":[{",".join(texts.values())}]}}'
        self._entries, self._texts = entries, texts
        return self._text


def metadata_text(
    fields: Mapping[str, object], entries_text: str, layout_text: str
) -> bytes:
    r"""Returns what lies beside an image in memory, as JSON.

    Args:
        fields: What is short; it is the first line.
        entries_text: The plain half of the state as JSON; empty on all ranks but one.
        layout_text: The layout, likewise.

    Example:
        >>> metadata_text({"step": 1}, '["entries"]', '{"tensors":[]}')
        b'{"step":1}\n"entries":["entries"],"layout":{"tensors":[]}'
    """
    body = f'"entries":{entries_text},"layout":{layout_text}' if entries_text else ""
    return f"{_text(fields)}\n{body}".encode()


def _key_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[object, ...]]:
    """Returns what a plan depends on, for each tensor."""
    return {
        name: (
            tensor.dtype,
            tensor.layout,
            tensor.shape,
            getattr(tensor, "placements", None),
            getattr(tensor, "device_mesh", None),
        )
        for name, tensor in tensors.items()
    }


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
