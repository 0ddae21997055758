"""What the losses over classes share: their options, their sums, and their checks.

For logits z over V classes, after the soft cap c where one is given, and a target y:

    z = c tanh(a / c),   lse = log sum_j exp z_j
    loss = lse - (1 - eps) z_y - eps mean_j z_j + zeta lse^2

eps is the label smoothing of Szegedy et al. 2016 (section 7,
https://arxiv.org/abs/1512.00567), zeta the weight of the z-loss of PaLM (Chowdhery et
al. 2022, section 5, https://arxiv.org/abs/2204.02311), c the cap of Gemma 2 (Gemma Team
2024, section 2, https://arxiv.org/abs/2408.00118).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._check import check_number, check_whole
from drivetrain_kernels._errors import IndexRangeError, OptionError
from drivetrain_kernels._fast_path import is_readable

Reduction = Literal["mean", "sum", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LossOptions:
    """How a loss over classes is computed.

    Args:
        op: The name of the op, for messages.
        reduction: What becomes of the losses of the tokens.
        ignore_index: The target of tokens that count for nothing.
        label_smoothing: eps, within 0 to 1.
        z_loss: zeta, at least 0.
        softcap: c, above 0, or None for no cap.
    """

    op: str
    reduction: str = "mean"
    ignore_index: int = -100
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        if self.reduction not in get_args(Reduction):
            self._fail("reduction", "'mean', 'sum' or 'none'", repr(self.reduction))
        check_whole(self.op, "ignore_index", self.ignore_index)
        check_number(self.op, "label_smoothing", self.label_smoothing)
        check_number(self.op, "z_loss", self.z_loss)
        if self.softcap is not None:
            check_number(self.op, "softcap", self.softcap)
        if not 0.0 <= self.label_smoothing <= 1.0:
            self._fail("label_smoothing", "within 0 to 1", self.label_smoothing)
        if not 0.0 <= self.z_loss < math.inf:
            self._fail("z_loss", "a finite number >= 0", self.z_loss)
        if self.softcap is not None and not 0.0 < self.softcap < math.inf:
            self._fail("softcap", "a finite number > 0, or None", self.softcap)

    def _fail(self, name: str, rule: str, value: object) -> None:
        message = f"{self.op}: {name} must be {rule}, got {value}"
        raise OptionError(message)

    @property
    def is_plain(self) -> bool:
        """Whether torch's own cross entropy has all that is asked for."""
        return self.z_loss == 0.0 and self.softcap is None


def class_losses(
    logits: Tensor, target: Tensor, options: LossOptions
) -> tuple[Tensor, Tensor]:
    """Returns the loss of each token and its z-loss, in plain operators.

    Args:
        logits: Shape [..., num_classes].
        target: Shape [...], classes or `ignore_index`.
        options: How the loss is computed.
    """
    z = logits.to(accumulation_dtype(logits.dtype))
    if options.softcap is not None:
        z = options.softcap * torch.tanh(z / options.softcap)
    lse = torch.logsumexp(z, dim=-1)
    counts = target != options.ignore_index
    chosen = torch.where(counts, target, 0).unsqueeze(-1)
    target_logit = z.gather(-1, chosen).squeeze(-1)
    eps = options.label_smoothing
    losses = lse - (1.0 - eps) * target_logit
    if eps:
        losses = losses - eps * z.mean(dim=-1)
    z_losses = options.z_loss * lse.square()
    zero = losses.new_zeros(())
    if options.z_loss:
        losses = losses + z_losses
    return torch.where(counts, losses, zero), torch.where(counts, z_losses, zero)


def reduce_losses(losses: Tensor, target: Tensor, options: LossOptions) -> Tensor:
    """Returns losses of tokens reduced; ignored tokens have a loss of zero already.

    The mean is over the tokens that count; over none it is NaN, with gradients of zero.
    `losses` may be their sum already.
    """
    if options.reduction == "none":
        return losses
    total = losses.sum()
    if options.reduction == "sum":
        return total
    num_counted = (target != options.ignore_index).sum()
    mean = total / num_counted.clamp(min=1)
    return torch.where(num_counted > 0, mean, math.nan)


def check_target_range(target: Tensor, num_classes: int, options: LossOptions) -> None:
    """Checks targets that lie in the memory of the host, where reading them is free.

    Raises:
        IndexRangeError: A target is neither a class nor `ignore_index`.
    """
    if target.numel() == 0 or not is_readable(target):
        return
    wrong = ((target < 0) | (target >= num_classes)) & (target != options.ignore_index)
    if not bool(wrong.any()):
        return
    place = int(wrong.reshape(-1).nonzero()[0])
    message = (
        f"{options.op}: a target must be in 0 to {num_classes - 1} or ignore_index="
        f"{options.ignore_index}, got {int(target.reshape(-1)[place])} at token {place}"
    )
    raise IndexRangeError(message)
