"""Tensor source: any checkpoint as its readers see it, tensors by name and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from drivetrain_core.services import TensorSpec


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


def read_tensor(
    source: TensorSource, name: str, dtype: torch.dtype | None = None
) -> Tensor:
    """Returns a tensor of a checkpoint as a whole.

    Args:
        source: The checkpoint.
        name: The tensor.
        dtype: What it is cast to; None leaves it as it is.

    Raises:
        CheckpointError: It is damaged, cannot be read, or is said to be larger than memory.
    """
    spec = source.tensors[name]
    try:
        tensor = torch.empty(spec.global_shape, dtype=dtype or spec.dtype)
    except (RuntimeError, MemoryError) as error:
        message = f"{source.where}: no room for {name}, {list(spec.global_shape)}"
        raise CheckpointError(message) from error
    if tensor.numel():
        source.fill({name: tensor})
    return tensor


def bytes_of(tensor: Tensor) -> Tensor:
    """Returns the bytes of a dense tensor on the CPU, as a vector that shares them."""
    return tensor.reshape(-1).view(torch.uint8)
