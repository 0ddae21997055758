"""The state of a training run as named tensors, whoever holds which part of them.

Checkpoints, transfers between peers and resharding all read and write this one view:
canonical names, the global shape, and where the local part lies in it. There is no
wrapper's prefix and no rank in a name, so two runs of any number of ranks agree.

Of a program over a mesh each rank has other names, and several parts of one: it is
saved and restored through `StateEntry`, as `Accelerated.state()` gives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """A tensor as all ranks together hold it.

    Args:
        name: The canonical name, such as `layers.0.weight` or
            `optimizer.exp_avg.layers.0.weight`.
        global_shape: Its shape over all ranks.
        dtype: The type of its elements.
    """

    name: str
    global_shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TensorPart(TensorSpec):
    """The block of a tensor that this rank holds.

    Ranks that hold the same block (replicas) have parts of equal name and offset. A
    rank that holds nothing of a tensor has a part with a zero in its local shape.

    Args:
        name: The canonical name.
        global_shape: The tensor's shape over all ranks.
        dtype: The type of its elements.
        offset: Where the block begins in each dimension of the global shape.
        local: The block itself, sharing memory with the live state: writing into it
            in place restores it.

    Example:
        >>> import torch
        >>> from drivetrain_core.services import ModelState
        >>> part = ModelState(torch.nn.Linear(3, 2)).parts()[0]
        >>> part.name, part.global_shape, part.offset, tuple(part.local.shape)
        ('weight', (2, 3), (0, 0), (2, 3))
    """

    offset: tuple[int, ...]
    local: torch.Tensor


@runtime_checkable
class StateSource(Protocol):
    """Gives the state of a run by canonical names, to be read and written in place.

    All methods are called between steps, from one thread; none communicates.
    """

    def parts(self) -> tuple[TensorPart, ...]:
        """Returns this rank's parts, with the same names in the same order on each.

        A tensor that goes by two names (tied weights) is there once, under the first.
        """
        ...

    def scalars(self) -> Mapping[str, object]:
        """Returns the plain values of the state by name, equal on all ranks."""
        ...

    def prepare(self, specs: Iterable[TensorSpec]) -> None:
        """Makes `parts` hold these tensors, so that they can be written.

        An optimizer that has not stepped has no state yet; this allocates it, with
        contents that are not defined. Tensors that are there already stay as they are.

        Args:
            specs: What the one that is to be copied holds.

        Raises:
            NamesError: This program has no place for one of them, or one of another
                shape or type.
        """
        ...

    def load_scalars(self, values: Mapping[str, object]) -> None:
        """Sets plain values, as `scalars` of the one to be copied gave them.

        Args:
            values: The values by name.

        Raises:
            NamesError: This program has no place for one of them.
        """
        ...
