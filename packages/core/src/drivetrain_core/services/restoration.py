"""What is to be done to put what a checkpoint holds back into a live state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drivetrain_core.services._shape_mismatch import summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch


@dataclass(slots=True)
class Restoration:
    """What is to be done to restore a state, in this order.

    Args:
        prepare: Makes places for tensors that are not there yet.
        targets: Returns the tensors to be written in place, by name.
        finish: Takes over plain values, when the tensors have been written.
        mismatches: What does not fit, and is left as it is; one sentence each.
    """

    prepare: list[Callable[[], None]] = field(default_factory=list)
    targets: list[Callable[[], Mapping[str, torch.Tensor]]] = field(
        default_factory=list
    )
    finish: list[Callable[[], object]] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Returns what does not fit, one a line and at most 50 of them; "" if all fits.

        Example:
            >>> Restoration(mismatches=["'a' is here, but not in the checkpoint"]).summary()
            "'a' is here, but not in the checkpoint"
        """
        return summary(self.mismatches) if self.mismatches else ""
