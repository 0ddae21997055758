"""What any checkpoint is to its readers: tensors by name, and plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from drivetrain_core.services import TensorSpec

__all__ = ["TensorSource"]


class TensorSource(Protocol):
    """A checkpoint that is open for reading; used by one thread at a time.

    Attributes:
        kind: Its format: `drivetrain`, `dcp`, `safetensors` or `torch`.
        where: What a user calls it.
        tensors: The tensors in it, by name.
    """

    kind: str
    where: str
    tensors: Mapping[str, TensorSpec]

    def values(self) -> dict[str, Any]:
        """Returns what is no tensor, by name.

        Raises:
            CheckpointError: It holds an object of a class that is not allowed.
        """
        ...

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Writes tensors in place: all of them, or this rank's block of a DTensor.

        Args:
            targets: The tensors by name, each of the shape that is in the checkpoint;
                values are cast to the target's dtype.

        Raises:
            CheckpointError: What is there is damaged, or cannot be read.
        """
        ...
