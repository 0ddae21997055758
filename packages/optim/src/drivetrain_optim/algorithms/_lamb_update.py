"""The arithmetic of one step of LAMB; the equations stand in the class `LAMB`.

A step has two parts: the moments with the squared norms of weights and steps, and the
weights. Between them the norms of parameters that are sharded are summed over ranks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from drivetrain_optim.batched._scalars import Number, in_dtype, is_one, row_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from drivetrain_optim.batched._columns import Columns


class LambScalars(NamedTuple):
    """What one step of LAMB needs besides tensors, in the order of `csrc/row.hpp`.

    Args:
        beta1: Decay rate of the first moment.
        beta2: Decay rate of the second moment.
        average: Weight of a new gradient in the first moment.
        debias1: `1 - beta1^t`, or 1.
        debias2_root: `sqrt(1 - beta2^t)`, or 1.
        eps: Added to the denominator.
        inside: Weight of the weights in the step.
        shrink: Factor on the weights before the step.
        coupled: Weight of the weights in the gradient.
        lr: Learning rate.
        grad_scale: Factor on the gradients; negative to ascend.
        norm_low: Least norm of the weights in the trust ratio.
        norm_high: Largest norm of the weights in the trust ratio.
        ratio_low: Least trust ratio.
        ratio_high: Largest trust ratio.
    """

    beta1: float
    beta2: float
    average: float
    debias1: Number
    debias2_root: Number
    eps: float
    inside: float
    shrink: Number
    coupled: float
    lr: Number
    grad_scale: Number
    norm_low: float
    norm_high: float
    ratio_low: float
    ratio_high: float


def lamb_scalars(
    group: Mapping[str, Any], lr: Number, step: Number, grad_scale: Number = 1.0
) -> LambScalars:
    """Returns the scalars of a step.

    Args:
        group: The options of a parameter group.
        lr: Its learning rate.
        step: The number of the step, from 1.
        grad_scale: Factor on the gradients.
    """
    beta1, beta2 = group["betas"]
    weight_decay, decay = group["weight_decay"], group["decay"]
    corrects = group["bias_correction"]
    norm_low, norm_high = group["weight_norm_clip"] or (0.0, math.inf)
    ratio_low, ratio_high = group["trust_clip"] or (0.0, math.inf)
    return LambScalars(
        beta1=beta1,
        beta2=beta2,
        average=1 - beta1 if group["grad_averaging"] else 1.0,
        debias1=1 - beta1**step if corrects else 1.0,
        debias2_root=(1 - beta2**step) ** 0.5 if corrects else 1.0,
        eps=group["eps"],
        inside=weight_decay if decay == "inside" else 0.0,
        shrink=1 - lr * weight_decay if decay == "decoupled" else 1.0,
        coupled=weight_decay if decay == "coupled" else 0.0,
        lr=lr,
        grad_scale=-grad_scale if group["maximize"] else grad_scale,
        norm_low=norm_low,
        norm_high=norm_high,
        ratio_low=ratio_low,
        ratio_high=ratio_high,
    )


def trust_ratios(squares: Tensor, s: LambScalars) -> Tensor:
    """Returns the factors on the steps.

    Args:
        squares: The squared norms of each weight and of its step, shape (n, 2).
        s: The scalars of the step.

    Returns:
        The norm of each weight, within its bounds, over that of its step, within the
        bounds of the ratio; 1 where a norm is 0. Shape (n,).

    Example:
        >>> group = {"betas": (0.9, 0.999), "weight_decay": 0.0, "decay": "inside",
        ...          "bias_correction": True, "weight_norm_clip": None, "eps": 1e-6,
        ...          "trust_clip": (0.0, 10.0), "grad_averaging": True, "maximize": False}
        >>> s = lamb_scalars(group, lr=1e-3, step=1)
        >>> trust_ratios(torch.tensor([[4.0, 1.0], [0.0, 1.0], [1e4, 1.0]]), s)
        tensor([ 2.,  1., 10.])
    """
    weight, step = squares.sqrt().unbind(1)
    ratio = weight.clamp(s.norm_low, s.norm_high) / step
    ratio = ratio.clamp(s.ratio_low, s.ratio_high)
    one = torch.ones_like(ratio)
    chosen: Tensor = torch.where((weight == 0) | (step == 0), one, ratio)
    return chosen


def moments_loop(columns: Columns, scalars: LambScalars) -> Tensor:
    """Updates the moments one tensor at a time; returns the squared norms, (n, 2)."""
    squares = []
    for row, (w, grad, m, v) in enumerate(_rows(columns)):
        s = _like(w, row_of(scalars, row))
        g = grad if is_one(s.grad_scale) else grad * s.grad_scale
        if s.coupled:
            g = g.add(w, alpha=s.coupled)
        m.mul_(s.beta1).add_(g, alpha=s.average)
        v.mul_(s.beta2).addcmul_(g, g, value=1 - s.beta2)
        u = _direction(w, m, v, s)
        squares.append(torch.stack([w.square().sum(), u.square().sum()]))
    return torch.stack(squares)


def apply_loop(columns: Columns, scalars: LambScalars, ratios: Tensor) -> None:
    """Updates the weights one tensor at a time: the reference."""
    for row, (w, _, m, v) in enumerate(_rows(columns)):
        s = _like(w, row_of(scalars, row))
        u = _direction(w, m, v, s)
        if not is_one(s.shrink):
            w.mul_(s.shrink)
        w.sub_(u.mul_(s.lr * ratios[row].to(w.dtype)))


def _direction(w: Tensor, m: Tensor, v: Tensor, s: LambScalars) -> Tensor:
    u: Tensor = (m / s.debias1).div_((v.sqrt() / s.debias2_root).add_(s.eps))
    if s.inside:
        u.add_(w, alpha=s.inside)
    return u


def moments_foreach(columns: Columns, s: LambScalars) -> Tensor:
    """Does what `moments_loop` does, with one operation for all tensors."""
    ws, (ms, vs) = columns.weights, columns.moments
    gs: Any = columns.step_gradients(s.grad_scale, s.coupled)
    torch._foreach_mul_(ms, s.beta1)
    torch._foreach_add_(ms, gs, alpha=s.average)
    torch._foreach_mul_(vs, s.beta2)
    torch._foreach_addcmul_(vs, gs, gs, 1 - s.beta2)
    del gs
    norms = [torch._foreach_norm(tensors) for tensors in (ws, _directions(columns, s))]
    columns_of_norms = [torch.stack(list(column)) for column in norms]
    squares: Tensor = torch.stack(columns_of_norms, dim=1).square_()
    return squares


def apply_foreach(columns: Columns, s: LambScalars, ratios: Tensor) -> None:
    """Does what `apply_loop` does, with one operation for all tensors."""
    us = _directions(columns, s)
    factors = (ratios * s.lr).to(us[0].dtype)
    torch._foreach_mul_(us, list(factors.unbind()))
    if not is_one(s.shrink):
        torch._foreach_mul_(columns.weights, s.shrink)
    torch._foreach_sub_(columns.weights, us)


def _directions(columns: Columns, s: LambScalars) -> list[Tensor]:
    ms, vs = columns.moments
    denominators = torch._foreach_sqrt(vs)
    torch._foreach_div_(denominators, s.debias2_root)
    torch._foreach_add_(denominators, s.eps)
    us = torch._foreach_div(ms, s.debias1)
    torch._foreach_div_(us, denominators)
    if s.inside:
        torch._foreach_add_(us, columns.weights, alpha=s.inside)
    return list(us)


def _rows(columns: Columns) -> Any:
    return zip(columns.weights, columns.grads, *columns.moments, strict=True)


def _like(tensor: Tensor, scalars: LambScalars) -> LambScalars:
    """Returns the scalars with those that are tensors in the dtype of arithmetic."""
    return LambScalars(*(in_dtype(value, tensor.dtype) for value in scalars))
