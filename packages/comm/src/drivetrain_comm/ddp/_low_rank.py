"""PowerSGD's approximation of one matrix: a power iteration that goes on over the steps.

Of a gradient M of n x m, n x r and m x r numbers travel: P = M Q, averaged and
orthogonalised, and Q = M^T P, averaged. P Q^T stands for M; what is missing is added to
the gradient of the next step. Q is kept, so that each step refines the last one's.
"""

from __future__ import annotations

import torch

# Columns that lose this much to those before them hold nothing but rounding errors.
_LEAST_LEFT = {torch.float32: 1e-5, torch.float64: 1e-12}


def saves(shape: torch.Size, rank: int) -> bool:
    """Returns whether the factors of a tensor are smaller than it is.

    Args:
        shape: Of the tensor; its first dimension is one of the matrix, the rest the other.
        rank: Of the approximation.

    Example:
        >>> saves(torch.Size([64, 3, 3, 3]), 4), saves(torch.Size([64]), 4)
        (True, False)
    """
    if len(shape) < 2:
        return False
    size = shape.numel()
    return size > 0 and (shape[0] + size // shape[0]) * rank < size


def orthogonalize(matrix: torch.Tensor) -> None:
    """Makes the columns of a matrix orthonormal, in place, by Gram and Schmidt.

    Columns that depend on those before them become zero. What is not finite remains so.

    Args:
        matrix: Of n x r, float32 or float64.

    Example:
        >>> x = torch.tensor([[3.0, 3.0], [0.0, 2.0]])
        >>> orthogonalize(x)
        >>> x
        tensor([[1., 0.],
                [0., 1.]])
    """
    for at in range(matrix.shape[1]):
        column, before = matrix[:, at], matrix[:, :at]
        whole = column.norm()
        # Twice, since once leaves rounding errors of nearly dependent columns.
        for _ in range(2 if at else 0):
            column -= before @ (before.T @ column)
        left = column.norm()
        is_nothing = left <= whole * _LEAST_LEFT[matrix.dtype]
        column /= left
        column.masked_fill_(is_nothing, 0.0)


class LowRank:
    """The state of one gradient; all of it but the error is equal on all ranks.

    Each step calls `project`, has P averaged, calls `project_back`, has Q averaged, and
    calls `restore`. See Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank
    Gradient Compression for Distributed Optimization", 2019, algorithms 1 and 2,
    https://arxiv.org/abs/1905.13727.

    Args:
        like: A tensor of the gradient's shape, dtype and device.
        rank: Of the approximation.
        seed: Of the first Q; equal on all ranks, and another one for each gradient.

    Attributes:
        error: What was not sent yet, of n x m.
        q: The Q to begin the next step with, of m x rank.

    Example:
        >>> state = LowRank(torch.empty(3, 2), rank=1, seed=0)
        >>> gradient = torch.outer(torch.tensor([1.0, 2.0, 3.0]), torch.ones(2))
        >>> p = state.project(gradient)
        >>> q = state.project_back()
        >>> state.restore(gradient)
        >>> gradient[:, 0]
        tensor([1.0000, 2.0000, 3.0000])
    """

    def __init__(self, like: torch.Tensor, *, rank: int, seed: int) -> None:
        """Begins with a random Q and no error."""
        rows = like.shape[0]
        self.error = like.new_zeros(rows, like.numel() // rows)
        self._generator = torch.Generator().manual_seed(seed)
        self.q = self._random(self.error.shape[1], rank)
        self._p = like.new_empty(0)
        self._own_q = self._mean_q = like.new_empty(0)

    def project(self, gradient: torch.Tensor) -> torch.Tensor:
        """Returns P, to be averaged in place over all ranks."""
        # What the gradient was with what is owed; the error until `restore` has said
        # what of it is sent.
        self.error += gradient.view_as(self.error)
        self._p = self.error @ self.q
        return self._p

    def project_back(self) -> torch.Tensor:
        """Returns this rank's Q for the averaged P, to be averaged in place."""
        orthogonalize(self._p)
        self._own_q = self.error.T @ self._p
        self._mean_q = self._own_q.clone()
        return self._mean_q

    def restore(self, gradient: torch.Tensor) -> None:
        """Puts the average over all ranks in a gradient's place."""
        gradient.view_as(self.error).copy_(self._p @ self._mean_q.T)
        if not self._mean_q.isfinite().all():
            # The user's step sees what is not finite; later steps must not.
            self.error.zero_()
            return
        self.error -= self._p @ self._own_q.T
        self.q = self._mean_q
        is_dead = self.q.abs().amax(0) == 0
        if is_dead.any():
            # A column of zeros would stay one for ever.
            self.q = torch.where(is_dead, self._random(*self.q.shape), self.q)

    def _random(self, rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=self._generator).to(self.error)
