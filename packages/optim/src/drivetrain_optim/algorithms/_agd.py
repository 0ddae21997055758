"""AGD: momentum over a preconditioner made of differences of the momentum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from drivetrain_optim.algorithms._agd_update import (
    agd_scalars,
    update_capturable,
    update_foreach,
    update_loop,
)
from drivetrain_optim.batched._batched import BatchedOptimizer
from drivetrain_optim.checks._options import AGD_OPTIONS
from drivetrain_optim.checks._tensor_checks import parameter_names
from drivetrain_optim.fused import _native, _triton

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal

    from torch import Tensor
    from torch.optim.optimizer import ParamsT

    from drivetrain_optim.batched._norms import ShardSlots
    from drivetrain_optim.batched._scalars import Number
    from drivetrain_optim.batched._work import Work

_UPDATES = {
    "loop": update_loop,
    "foreach": update_foreach,
    "capturable": update_capturable,
}


class AGD(BatchedOptimizer):
    """Switches each coordinate between an adaptive step and SGD with momentum.

        m_t = beta1 * m_{t-1} + (1 - beta1) * g_t
        s_t = m_t / (1 - beta1^t) - m_{t-1} / (1 - beta1^(t-1))
        s_1 = m_1 / (1 - beta1)
        b_t = beta2 * b_{t-1} + (1 - beta2) * s_t^2
        w_t = w_{t-1} - lr * mhat_t / max(sqrt(bhat_t), delta)

    `w_t` are the weights after step `t = 1, 2, ...`, `g_t` the gradient at `w_{t-1}`,
    `m_t` its exponential average, `s_t` the difference of two successive de-biased
    averages, `b_t` the exponential average of its square (`m_0 = b_0 = 0`),
    `mhat_t = m_t / (1 - beta1^t)` and `bhat_t = b_t / (1 - beta2^t)`. Powers and
    quotients are elementwise. A coordinate with `sqrt(bhat_t) > delta` is in the
    adaptive regime; any other one steps like SGD with momentum at the rate
    `lr / delta`. State is two tensors a parameter, as with Adam.

    Algorithm 1 of Yue et al., "AGD: an Auto-switchable Optimizer using Stepwise
    Gradient Difference for Preconditioning Matrix", NeurIPS 2023,
    https://arxiv.org/abs/2312.01658.

    Arithmetic is at least float32: low-precision weights are rounded once a step.
    `step` never waits for a device, does not change gradients, and leaves everything
    as it was when it raises because of a gradient or a learning rate. DTensor
    parameters (FSDP2, tensor parallelism) are updated shard by shard without
    communication, except for one number that `max_grad_norm` needs. Not thread-safe,
    like every torch optimizer.

    Tensors of the state may be changed in place or replaced between steps; they are
    found again. Squares are in the dtype of arithmetic: in float32, an unclipped gradient
    of 1e21 makes `b` infinite, and its coordinate stands still from then on, as with
    torch's Adam.

    Args:
        params: Parameters, named parameters, or parameter groups; real floating-point
            tensors. A group may set each option for itself.
        lr: Learning rate, a number >= 0 or a tensor with one element. At 0 no weight
            changes, whatever `decay` is. The authors advise about a tenth of what
            AdamW uses; an eighth was best in the examples here.
        betas: Decay rates `beta1` and `beta2`, in [0, 1).
        delta: Floor of the denominator and switch between the regimes, > 0; or a
            preset of the authors: "transformer" (1e-14), "cnn" (1e-8), "default"
            (1e-5).
        weight_decay: Strength of weight decay, >= 0.
        decay: How it is applied before the step: "decoupled" multiplies the weights
            by `1 - lr * weight_decay`, "fixed" by `1 - weight_decay`, and "coupled"
            adds `weight_decay * w` to the gradient.
        amsgrad: Whether the largest `b` so far takes the place of `b_t`, at the cost
            of a third tensor a parameter.
        clip: Bound on each coordinate of `m_t / max(sqrt(b_t), delta * c)` with
            `c = sqrt(1 - beta2^t)`, before `lr * c / (1 - beta1^t)` scales it; None
            for no bound. The authors advise 5 when training is unstable.
        max_grad_norm: Bound on the norm of all gradients of the optimizer together:
            larger gradients count as scaled down to it. They are not changed
            themselves. None for no bound.
        maximize: Whether to ascend.
        foreach: True for multi-tensor operations, False for one tensor at a time; both
            give the same bits on a CPU. Temporaries are as large as a batch of tensors
            (at most 262,144 elements on a CPU and 64 Mi elsewhere, or one tensor), not
            as the model.
        fused: True for fused kernels, or an error where there are none; False for
            none. With both None, the fastest that there is; `explain` tells which.
        capturable: Whether the step count lies on the device, so that a CUDA graph can
            hold the step; `lr` may then be a tensor there.
        differentiable: Only False: steps cannot be differentiated through.
        state_dtype: The narrowest dtype of the moments, `torch.float32` or
            `torch.float64`; a wider parameter keeps its own. None gives moments of
            the parameter's dtype; in bf16, `b` then stops changing below 1/256 of
            its value.
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
        >>> optimizer = AGD([weight], lr=0.1)
        >>> for _ in range(100):
        ...     optimizer.zero_grad()
        ...     weight.square().sum().backward()
        ...     optimizer.step()
        >>> bool(weight.abs().max() < 0.1)
        True
    """

    _rules = AGD_OPTIONS
    _moments = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    _own_options = ("delta", "decay", "clip", "state_dtype")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        delta: float | str = 1e-5,
        weight_decay: float = 0.0,
        *,
        decay: Literal["decoupled", "fixed", "coupled"] = "decoupled",
        amsgrad: bool = False,
        clip: float | None = None,
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

    def _moments_of(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return self._moments if group["amsgrad"] else self._moments[:2]

    def _update(
        self, works: Sequence[Work], scales: Mapping[int, Number], slots: ShardSlots
    ) -> None:
        del slots
        numbers = [
            agd_scalars(work.group, work.lr, work.step, scales[id(work.group)])
            for work in works
        ]
        for work, scalars in zip(works, numbers, strict=True):
            path = work.batch.kind.path
            if path == "native":
                _native.agd(work.rows, scalars)
            elif path == "triton":
                _triton.agd(work, scalars)
            else:
                columns = work.columns()
                _UPDATES[path](columns, scalars)
                columns.store_moments(work.batch)
                columns.store_weights(work.batch)

    @torch.no_grad()
    def adaptive_share(self) -> dict[str, float]:
        """Returns the share of each parameter that is in the adaptive regime.

        Waits for the device once. With DTensor parameters every rank must call it, and
        gets the share of the whole parameter.

        Returns:
            The share of coordinates with `sqrt(bhat) > delta`, by the parameter's name
            if `named_parameters()` were given, else by `group.position`. Parameters
            that were never stepped are left out.

        Example:
            >>> weight = torch.nn.Parameter(torch.zeros(4))
            >>> optimizer = AGD([("weight", weight)], delta=1e-3)
            >>> weight.grad = torch.tensor([0.0, 1e-6, 1.0, 2.0])
            >>> optimizer.step()
            >>> optimizer.adaptive_share()
            {'weight': 0.5}
        """
        counts: dict[str, Tensor] = {}
        sizes: dict[str, int] = {}
        for index, group in enumerate(self.param_groups):
            names = parameter_names(index, group)
            for name, param in zip(names, group["params"], strict=True):
                state = self.state.get(param)
                if state and state["step"] > 0:
                    counts[name] = _adaptive_count(state, group)
                    sizes[name] = max(1, param.numel())
        if not counts:
            return {}
        device = next(iter(counts.values())).device
        totals = torch.stack([count.to(device) for count in counts.values()]).tolist()
        return {
            name: total / sizes[name]
            for name, total in zip(counts, totals, strict=True)
        }


def _adaptive_count(state: Mapping[str, Tensor], group: Mapping[str, Any]) -> Tensor:
    b = state["exp_avg_sq"]
    if group["amsgrad"]:
        b = state.get("max_exp_avg_sq", b)
    b = b.to(torch.promote_types(b.dtype, torch.float32))
    floor = agd_scalars(group, 0.0, state["step"].item()).floor
    count = (b.sqrt() > floor).sum()
    full: Callable[[], Tensor] | None = getattr(count, "full_tensor", None)
    return count if full is None else full()
