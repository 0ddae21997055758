"""Work of one step on one batch: its tensors, fetched and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_optim.batched._columns import Columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from drivetrain_optim.batched._batch import Batch
    from drivetrain_optim.batched._scalars import Number
    from drivetrain_optim.fused._table import Table


class Work(NamedTuple):
    """One batch at one step.

    Args:
        group: The options of the batch's group.
        lr: The group's learning rate.
        batch: The batch.
        grads: Its local gradients, kept until the step is done.
        table: The pointer table, where a kernel reads one.
    """

    group: Mapping[str, Any]
    lr: Number
    batch: Batch
    grads: list[Tensor]
    table: Table | None

    @property
    def step(self) -> Number:
        """The number of the step, from 1; a tensor where it lies on the device."""
        if self.batch.kind.step is None:
            return self.batch.steps.double() + 1
        return self.batch.steps[0].item() + 1

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows of the pointer table, which a kernel reads."""
        assert self.table is not None
        return self.table.rows

    def columns(self) -> Columns:
        """Returns the tensors as lists in the dtype of arithmetic."""
        return Columns.of(self.batch, self.grads)
