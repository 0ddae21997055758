"""Source of tensors by name: a checkpoint of this package's own format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from drivetrain_checkpoint._formats.plain_values import MAPPINGS, is_value, value_of
from drivetrain_checkpoint._layout.partition import specs_of
from drivetrain_checkpoint._rank_group import RankGroup
from drivetrain_checkpoint._restore.read_blocks import read_blocks, wanted_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from drivetrain_checkpoint._storage.open_checkpoint import CommittedCheckpoint
    from drivetrain_core.services import TensorSpec


class DrivetrainSource:
    """A committed checkpoint.

    Args:
        checkpoint: The checkpoint.
    """

    kind = "drivetrain"

    def __init__(self, checkpoint: CommittedCheckpoint) -> None:
        self.where = checkpoint.url
        self.step = checkpoint.root.step
        self.entries = checkpoint.root.entries
        self._checkpoint = checkpoint
        self.tensors: Mapping[str, TensorSpec] = specs_of(checkpoint.layout)

    @property
    def ties(self) -> dict[str, str]:
        """The other names of tied weights, and which tensor each stands for."""
        return {
            f"{key}.{name}": f"{key}.{of}"
            for key, entry in self._checkpoint.entries().items()
            for name, of in entry.get("ties", {}).items()
        }

    def values(self) -> dict[str, Any]:
        """Returns the plain data; the plain half of a model or an optimizer as it is.

        Numbers of numpy are returned as Python's.
        """
        entries = self._checkpoint.entries()
        found = {}
        for name, entry in entries.items():
            if is_value(entry) and name != MAPPINGS:
                value = value_of(entry)
                # Of a file with such a number `torch.load` says that it is not safe.
                found[name] = value.item() if isinstance(value, np.generic) else value
            elif entry["plain"] != ["tensor", name] and name != MAPPINGS:
                found[name] = entry["plain"]
        return found

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Reads only what is needed, and compares it with its checksums."""
        layout = self._checkpoint.layout
        wanted = wanted_blocks(layout, targets, RankGroup())
        read_blocks(layout, self._checkpoint.source, wanted)
