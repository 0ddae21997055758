"""The pointer table: one row of integers a parameter, which the fused kernels read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

    from drivetrain_optim.batched._batch import Batch

COLUMNS = (
    "weight",
    "grad",
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "master",
    "numel",
    "dtypes",
    "seed",
    "adapts",
)
"""The columns of a table, as `csrc/row.hpp` reads them: addresses, 0 for none, then
numbers."""

_GRAD = COLUMNS.index("grad")
_SEED = COLUMNS.index("seed")

DTYPE_CODES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
}
"""The dtypes that the kernels read and write, by the number that stands in a table."""


class Table:
    """The pointer table of a batch, kept from step to step.

    Args:
        batch: The batch; its weights, moments and masters must be dense.
    """

    def __init__(self, batch: Batch) -> None:
        """Writes all but the gradients' addresses and the seeds."""
        kind = batch.kind
        names = ["weight", *kind.kept]
        local = batch.local(batch.params)
        self.rows = np.zeros((len(local), len(COLUMNS)), dtype=np.int64)
        for name, column in zip(names, batch.addresses, strict=True):
            self.rows[:, COLUMNS.index(name)] = column
        dtypes = (*kind.dtypes, torch.float32)
        codes = sum(DTYPE_CODES[dtype] << 8 * k for k, dtype in enumerate(dtypes))
        self.rows[:, COLUMNS.index("numel")] = [tensor.numel() for tensor in local]
        self.rows[:, COLUMNS.index("dtypes")] = codes
        self.rows[:, COLUMNS.index("adapts")] = kind.adapts
        self._contiguous = all(map(torch.Tensor.is_contiguous, local))
        self._grads: list[int] = []

    def point_to(self, batch: Batch, grads: list[Tensor]) -> list[Tensor]:
        """Writes the gradients' addresses, and the seeds, for the coming step.

        Returns:
            The gradients that the table points to, to be kept until the step is done:
            those given, or copies that are laid out like their weights.
        """
        if not (self._contiguous and all(map(torch.Tensor.is_contiguous, grads))):
            weights = batch.local(batch.params)
            pairs = zip(grads, weights, strict=True)
            grads = [
                grad
                if grad.stride() == weight.stride()
                else torch.empty_like(weight, dtype=grad.dtype).copy_(grad)
                for grad, weight in pairs
            ]
            self._grads = list(map(torch.Tensor.data_ptr, grads))
            self.rows[:, _GRAD] = self._grads
        elif batch.grad_addresses is not self._grads:
            self._grads = batch.grad_addresses
            self.rows[:, _GRAD] = self._grads
        if batch.kind.stochastic:
            self.rows[:, _SEED] = batch.seeds().astype(np.int64) + 1
        return grads


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements of a tensor fill its memory without gap or overlap.

    Example:
        >>> is_dense(torch.zeros(2, 3).T), is_dense(torch.zeros(4)[::2])
        (True, False)
    """
    size = 1
    dims = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, length in sorted(dim for dim in dims if dim[1] != 1):
        if stride != size:
            return tensor.numel() == 0
        size *= length
    return True
