"""The arithmetic of one step of AGD; the equations stand in the class `AGD`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from drivetrain_optim.batched._scalars import (
    Number,
    in_dtype,
    inverse_or_zero,
    is_one,
    row_of,
    where_positive,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_optim.batched._columns import Columns


class AgdScalars(NamedTuple):
    """What one step of AGD needs besides tensors, in the order of `csrc/row.hpp`.

    With `m_t` written out, `s_t = gain * (g_t - previous * m_{t-1})`: one pass, no copy
    of `m_{t-1}`, and no difference of two nearly equal numbers.

    Args:
        beta1: Decay rate of the first moment.
        beta2: Decay rate of the second moment.
        previous: `1 / (1 - beta1^(t-1))`; 0 at the first step, where `m_0 = 0`.
        gain: `(1 - beta1) / (1 - beta1^t)`.
        floor: `delta * sqrt(1 - beta2^t)`.
        rate: `lr * sqrt(1 - beta2^t) / (1 - beta1^t)`.
        shrink: Factor on the weights before the step.
        coupled: Weight of the weights in the gradient.
        clip: Bound on each coordinate before `rate`, infinity for none.
        grad_scale: Factor on the gradients; negative to ascend.
    """

    beta1: float
    beta2: float
    previous: Number
    gain: Number
    floor: Number
    rate: Number
    shrink: Number
    coupled: float
    clip: float
    grad_scale: Number


def agd_scalars(
    group: Mapping[str, Any], lr: Number, step: Number, grad_scale: Number = 1.0
) -> AgdScalars:
    """Returns the scalars of a step.

    Args:
        group: The options of a parameter group.
        lr: Its learning rate.
        step: The number of the step, from 1.
        grad_scale: Factor on the gradients.
    """
    beta1, beta2 = group["betas"]
    debias1 = 1 - beta1**step
    debias2_root = (1 - beta2**step) ** 0.5
    weight_decay, decay = group["weight_decay"], group["decay"]
    shrink: Number = 1.0
    if decay == "decoupled":
        shrink = 1 - lr * weight_decay
    elif decay == "fixed":
        # Checkpoint tools step once at lr = 0 to create the state.
        shrink = where_positive(lr, 1 - weight_decay, 1.0)
    return AgdScalars(
        beta1=beta1,
        beta2=beta2,
        previous=inverse_or_zero(1 - beta1 ** (step - 1)),
        gain=(1 - beta1) / debias1,
        floor=group["delta"] * debias2_root,
        rate=lr * debias2_root / debias1,
        shrink=shrink,
        coupled=weight_decay if decay == "coupled" else 0.0,
        clip=math.inf if group["clip"] is None else group["clip"],
        grad_scale=-grad_scale if group["maximize"] else grad_scale,
    )


def update_loop(columns: Columns, s: AgdScalars) -> None:
    """Updates weights and moments in place, one tensor at a time: the reference."""
    for w, grad, m, b, b_max in _rows(columns):
        g = grad if is_one(s.grad_scale) else grad * in_dtype(s.grad_scale, w.dtype)
        if s.coupled:
            g = g.add(w, alpha=s.coupled)
        difference = g.sub(m, alpha=s.previous)
        m.lerp_(g, 1 - s.beta1)
        value = (1 - s.beta2) * s.gain**2
        b.mul_(s.beta2).addcmul_(difference, difference, value=value)
        scale = b.sqrt() if b_max is None else b_max.copy_(b_max.maximum(b)).sqrt()
        scale.clamp_min_(s.floor)
        if s.shrink != 1:
            w.mul_(s.shrink)
        if s.clip == math.inf:
            w.addcdiv_(m, scale, value=-s.rate)
        else:
            w.add_((m / scale).clamp_(-s.clip, s.clip), alpha=-s.rate)


def update_foreach(columns: Columns, s: AgdScalars) -> None:
    """Does what `update_loop` does, with one operation for all tensors.

    Eight passes, as many as torch's AdamW takes; at most two lists of temporaries live
    at once.
    """
    weights, (ms, bs) = columns.weights, columns.moments[:2]
    gs: Any = columns.step_gradients(s.grad_scale, s.coupled)
    differences = torch._foreach_sub(gs, ms, alpha=s.previous)
    torch._foreach_lerp_(ms, gs, 1 - s.beta1)
    del gs
    torch._foreach_mul_(bs, s.beta2)
    value = (1 - s.beta2) * s.gain**2
    torch._foreach_addcmul_(bs, differences, differences, value)
    del differences
    if len(columns.moments) > 2:
        torch._foreach_maximum_(columns.moments[2], bs)
        bs = columns.moments[2]
    scales = torch._foreach_sqrt(bs)
    torch._foreach_clamp_min_(scales, s.floor)
    if s.shrink != 1:
        torch._foreach_mul_(weights, s.shrink)
    if s.clip == math.inf:
        torch._foreach_addcdiv_(weights, ms, scales, -s.rate)
    else:
        steps = torch._foreach_div(ms, scales)
        del scales
        torch._foreach_clamp_max_(steps, s.clip)
        torch._foreach_clamp_min_(steps, -s.clip)
        torch._foreach_add_(weights, steps, alpha=-s.rate)


def update_capturable(columns: Columns, scalars: AgdScalars) -> None:
    """Does what `update_loop` does, with scalars that may be tensors."""
    for row, (w, grad, m, b, b_max) in enumerate(_rows(columns)):
        s = AgdScalars(*(in_dtype(one, w.dtype) for one in row_of(scalars, row)))
        g = grad * s.grad_scale
        if scalars.coupled:
            g.add_(w, alpha=scalars.coupled)
        difference = g - s.previous * m
        m.lerp_(g, 1 - s.beta1)
        value = (1 - s.beta2) * s.gain * s.gain
        b.mul_(s.beta2).add_(difference.square_().mul_(value))
        second = b if b_max is None else b_max.copy_(b_max.maximum(b))
        step = m / second.sqrt().clamp_min_(s.floor)
        if scalars.clip != math.inf:
            step.clamp_(-scalars.clip, scalars.clip)
        w.mul_(s.shrink).sub_(step.mul_(s.rate))


def _rows(columns: Columns) -> Any:
    """Returns weight, gradient and moments of each parameter, with or without a max."""
    absent = [None] * len(columns.weights)
    lists = [columns.weights, columns.grads, *columns.moments, absent][:5]
    return zip(*lists, strict=True)
