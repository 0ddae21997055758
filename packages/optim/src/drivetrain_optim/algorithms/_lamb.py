"""LAMB: Adam's step, scaled for each parameter to the size of its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from drivetrain_optim.algorithms._lamb_update import (
    apply_foreach,
    apply_loop,
    lamb_scalars,
    moments_foreach,
    moments_loop,
    trust_ratios,
)
from drivetrain_optim.batched._batched import BatchedOptimizer
from drivetrain_optim.checks._options import LAMB_OPTIONS, LAMB_PRESETS
from drivetrain_optim.fused import _native, _triton

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    from torch import Tensor
    from torch.optim.optimizer import ParamsT

    from drivetrain_optim.algorithms._lamb_update import LambScalars
    from drivetrain_optim.batched._norms import ShardSlots
    from drivetrain_optim.batched._scalars import Number
    from drivetrain_optim.batched._work import Work


class LAMB(BatchedOptimizer):
    """Scales Adam's step for each parameter by a trust ratio, for very large batches.

        m_t = beta1 * m_{t-1} + (1 - beta1) * g_t
        v_t = beta2 * v_{t-1} + (1 - beta2) * g_t^2
        u_t = mhat_t / (sqrt(vhat_t) + eps) + weight_decay * w_{t-1}
        w_t = w_{t-1} - lr * phi(||w_{t-1}||) / ||u_t|| * u_t

    `w_t` are the weights of one parameter tensor after step `t = 1, 2, ...`, `g_t` the
    gradient at `w_{t-1}`, `m_t` and `v_t` the exponential averages of the gradient and
    of its elementwise square (`m_0 = v_0 = 0`), `mhat_t = m_t / (1 - beta1^t)` and
    `vhat_t = v_t / (1 - beta2^t)`, `u_t` the step of Adam with weight decay, `||.||`
    the Euclidean norm over the whole tensor, and `phi` the identity or a clipping. The
    quotient of the norms is the trust ratio, 1 where one of the norms is 0.

    Algorithm 2 of You et al., "Large Batch Optimization for Deep Learning: Training
    BERT in 76 minutes", ICLR 2020, https://arxiv.org/abs/1904.00962.

    Published implementations disagree on details; each is an option here, and
    `LAMB.paper`, `LAMB.nvlamb` and `LAMB.timm` set them as those do. Parameters that
    should not be scaled, as biases and norms often are not, go to a group with
    `adapt="none"`.

    Arithmetic is at least float32. `step` never waits for a device, does not change
    gradients, and leaves everything as it was when it raises because of a gradient or a
    learning rate. With sharded (DTensor) parameters, norms are those of the whole
    tensors: all ranks must step together, and each mesh costs one all-reduce of two
    numbers a parameter. Not thread-safe, like every torch optimizer.

    Tensors of the state may be changed in place or replaced between steps; they are
    found again. Squares are in the dtype of arithmetic: in float32, an unclipped gradient
    of 1e21 makes `v` infinite, and its coordinate stands still from then on, as with
    torch's Adam; a weight beyond 1.8e19 makes the trust ratio of its tensor infinite.

    Args:
        params: Parameters, named parameters, or parameter groups; real floating-point
            tensors. A group may set each option for itself.
        lr: Learning rate, a number >= 0 or a tensor with one element.
        betas: Decay rates `beta1` and `beta2`, in [0, 1).
        eps: Added to the denominator, > 0.
        weight_decay: Strength of weight decay, >= 0.
        decay: Where it enters: "inside" the step that is scaled, as in the equations;
            "decoupled" multiplies the weights by `1 - lr * weight_decay` beside the
            step; "coupled" adds `weight_decay * w` to the gradient.
        bias_correction: Whether `mhat` and `vhat` are divided as above; without it
            they are `m` and `v`, as in the third version of the paper.
        grad_averaging: Whether a gradient enters `m` with the weight `1 - beta1`;
            without it with 1.
        adapt: Which parameters take the trust ratio: "all", "decayed" (those of groups
            with weight decay), or "none".
        weight_norm_clip: Bounds (low, high) of `phi`; None for the identity.
        trust_clip: Bounds (low, high) on the trust ratio; None for none. It is not
            clipped where it is 1 because a norm is 0.
        max_grad_norm: Bound on the norm of all gradients of the optimizer together:
            larger gradients count as scaled down to it. They are not changed
            themselves. None for no bound.
        maximize: Whether to ascend.
        foreach: True for multi-tensor operations, False for one tensor at a time.
        fused: True for fused kernels, or an error where there are none; False for
            none. With both None, the fastest that there is; `explain` tells which.
        capturable: Whether the step count lies on the device, so that a CUDA graph can
            hold the step; `lr` may then be a tensor there.
        differentiable: Only False: steps cannot be differentiated through.
        state_dtype: The narrowest dtype of the moments, `torch.float32` or
            `torch.float64`; a wider parameter keeps its own. None gives moments of
            the parameter's dtype.
        master_weights: Whether bf16 and fp16 weights have a float32 copy in the state
            (`master`), which steps are taken on. Whoever writes new weights into the
            model, such as another checkpoint, must drop it: the next step would bring
            the old weights back.
        stochastic_rounding: Whether bf16 weights are rounded up or down at random
            with the true value as the mean, instead of to nearest.
        check_finite: Whether a gradient with inf or nan is an error; waits for the
            device once a step.

    Raises:
        HyperparameterError: An option is not allowed, there is no parameter, or a
            fused kernel is asked for that does not exist here.
        UnsupportedTensorError: A parameter is complex or integer.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        >>> optimizer = LAMB([weight], lr=0.05)
        >>> for _ in range(100):
        ...     optimizer.zero_grad()
        ...     weight.square().sum().backward()
        ...     optimizer.step()
        >>> bool(weight.abs().max() < 0.1)
        True
    """

    _rules = LAMB_OPTIONS
    _moments = ("exp_avg", "exp_avg_sq")
    _own_options = ("bias_correction", "adapt", "trust_clip", "weight_norm_clip")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        decay: Literal["inside", "decoupled", "coupled"] = "inside",
        bias_correction: bool = True,
        grad_averaging: bool = True,
        adapt: Literal["all", "decayed", "none"] = "all",
        weight_norm_clip: tuple[float, float] | None = None,
        trust_clip: tuple[float, float] | None = None,
        max_grad_norm: float | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
        master_weights: bool = False,
        stochastic_rounding: bool = False,
        check_finite: bool = False,
    ) -> None:
        """Checks the options and builds the parameter groups."""
        options = {
            name: value for name, value in locals().items() if name in self._rules
        }
        super().__init__(params, options)

    @classmethod
    def paper(cls, params: ParamsT, lr: float | Tensor = 1e-3, **options: Any) -> Self:
        """Returns LAMB as the fifth version of the paper has it: the defaults.

        Args:
            params: As for the class.
            lr: Learning rate.
            **options: Other options of the class.

        Example:
            >>> LAMB.paper([torch.zeros(2)]).defaults["max_grad_norm"] is None
            True
        """
        return cls(params, lr, **{**LAMB_PRESETS["paper"], **options})

    @classmethod
    def nvlamb(cls, params: ParamsT, lr: float | Tensor = 1e-3, **options: Any) -> Self:
        """Returns LAMB as NVIDIA's BERT recipe has it (`FusedLAMB(use_nvlamb=True)`).

        The gradients' global norm is clipped to 1, and every parameter is scaled.

        Args:
            params: As for the class.
            lr: Learning rate.
            **options: Other options of the class.

        Example:
            >>> LAMB.nvlamb([torch.zeros(2)]).defaults["max_grad_norm"]
            1.0
        """
        return cls(params, lr, **{**LAMB_PRESETS["nvlamb"], **options})

    @classmethod
    def timm(cls, params: ParamsT, lr: float | Tensor = 1e-3, **options: Any) -> Self:
        """Returns LAMB as the library timm has it, with its default options.

        The gradients' global norm is clipped to 1, and only parameters with weight
        decay are scaled. timm's `trust_clip=True` is `trust_clip=(0, 1)` here, and
        `always_adapt=True` is `adapt="all"`.

        Args:
            params: As for the class.
            lr: Learning rate.
            **options: Other options of the class.

        Example:
            >>> LAMB.timm([torch.zeros(2)]).defaults["adapt"]
            'decayed'
        """
        return cls(params, lr, **{**LAMB_PRESETS["timm"], **options})

    def _update(
        self, works: Sequence[Work], scales: Mapping[int, Number], slots: ShardSlots
    ) -> None:
        split: list[tuple[Work, LambScalars, Tensor]] = []
        numbers = [
            lamb_scalars(work.group, work.lr, work.step, scales[id(work.group)])
            for work in works
        ]
        for work, scalars in zip(works, numbers, strict=True):
            kind = work.batch.kind
            if kind.sharded is not None and kind.sharded[1] and kind.adapts:
                split.append((work, scalars, _moments(work, scalars)))
            else:
                _step_whole(work, scalars)
        parts = [(work.batch, squares) for work, _, squares in split]
        sums = slots.sum_squares(parts)
        for (work, scalars, _), squares in zip(split, sums, strict=True):
            _apply(work, scalars, squares)


def _step_whole(work: Work, scalars: LambScalars) -> None:
    """Steps parameters whose norms need no other rank."""
    if work.batch.kind.path == "native":
        _native.lamb(work.rows, scalars)
    else:
        _apply(work, scalars, _moments(work, scalars))


def _moments(work: Work, scalars: LambScalars) -> Tensor:
    """Updates the moments; returns this rank's squares of weights and steps, (n, 2)."""
    kind = work.batch.kind
    if kind.path == "native":
        return torch.from_numpy(_native.lamb_moments(work.rows, scalars))
    if kind.path == "triton":
        return _triton.lamb_moments(work, scalars)
    columns = work.columns()
    update = moments_foreach if kind.path == "foreach" else moments_loop
    squares = update(columns, scalars)
    columns.store_moments(work.batch)
    return squares


def _apply(work: Work, scalars: LambScalars, squares: Tensor) -> None:
    """Updates the weights, given the squares of whole weights and steps."""
    kind = work.batch.kind
    if kind.path == "native":
        _native.lamb_apply(work.rows, scalars, squares.numpy())
    elif kind.path == "triton":
        _triton.lamb_apply(work, scalars, squares)
    else:
        columns = work.columns()
        ratios = trust_ratios(squares, scalars)
        if not kind.adapts:
            ratios = torch.ones_like(ratios)
        apply = apply_foreach if kind.path == "foreach" else apply_loop
        apply(columns, scalars, ratios)
        columns.store_weights(work.batch)
