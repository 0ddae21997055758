"""Reads tensors by name from a checkpoint of this format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from drivetrain_checkpoint._dcp.values import MAPPINGS, is_value, value_of
from drivetrain_checkpoint._pieces import DTYPES
from drivetrain_checkpoint._read_blocks import read_blocks, wanted_of
from drivetrain_core.services import TensorSpec
from drivetrain_core.services.plain_json import from_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from drivetrain_checkpoint._pick import Picked

__all__ = ["NativeSource"]


class NativeSource:
    """A committed checkpoint.

    Args:
        picked: The checkpoint.
    """

    kind = "drivetrain"

    def __init__(self, picked: Picked) -> None:
        self.where = picked.url
        self.step = picked.root.step
        self.entries = picked.root.entries
        self._picked = picked
        self._sources = picked.sources()
        self.tensors: Mapping[str, TensorSpec] = {
            entry.name: TensorSpec(
                name=entry.name, global_shape=entry.shape, dtype=DTYPES[entry.dtype]
            )
            for entry in picked.layout.tensors
        }

    def values(self) -> dict[str, Any]:
        """Returns the plain data; the plain half of a model or an optimizer as it is.

        Numbers of numpy are returned as Python's.
        """
        entries = from_json(self._picked.root.entries)
        found = {}
        for name, entry in entries.items():
            if is_value(entry) and name != MAPPINGS:
                value = value_of(name, entry)
                # Of a file with such a number `torch.load` says that it is not safe.
                found[name] = value.item() if isinstance(value, np.generic) else value
            elif entry["plain"] != ["tensor", name] and name != MAPPINGS:
                found[name] = entry["plain"]
        return found

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Reads only what is needed, and compares it with its checksums."""
        layout = self._picked.layout
        read_blocks(layout, self._sources, wanted_of(layout, targets))
