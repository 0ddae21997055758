"""The two halves of a WSAM step: to the perturbed weights, and back with an update."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from drivetrain_optim._checks import params_with_gradients
from drivetrain_optim._state import local_part
from drivetrain_optim._wsam_perturb import (
    Rounding,
    add_into_,
    clip_factor,
    combine_,
    copied,
    descend_,
    dots,
    norms_squared,
    packed,
    perturb_,
    sums,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor
    from torch.amp import GradScaler
    from torch.optim import Optimizer

    from drivetrain_optim._batch_norm import RunningStatistics

    _Gradients = dict[Tensor, Tensor]

__all__ = [
    "DIRECTION",
    "Group",
    "Pass",
    "Plan",
    "begin",
    "step_from_both",
    "step_from_one",
]

DIRECTION = "wsam_direction"
"""The name in a parameter's state of what `every_k > 1` reuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What a step needs of one parameter group.

    Args:
        params: Its parameters.
        rho: The radius, negative if the base maximizes.
        weight: The factor `a = gamma / (1 - gamma)` of `gs - g`.
        rate: `lr * weight`, negative if the base maximizes; a tensor if `lr` is one
            on a device.
    """

    params: list[Tensor]
    rho: float
    weight: float
    rate: Tensor | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a step needs of the optimizer.

    Args:
        base: The base optimizer.
        groups: Its groups.
        adaptive: Whether the neighbourhood scales with the weights.
        decouple: Whether the sharpness term stays out of the base's gradient.
        eps: Added to the norm.
        max_grad_norm: Bound on the norm of each gradient, or None.
        keeps_direction: Whether other steps reuse what this one measures.
        due: Whether a second pass is due, so that no direction is in use.
        step: The number of steps so far, which seeds rounding.
        averages: Whether the first gradient is averaged over `process_group` here.
        process_group: The ranks of data parallelism; None for all.
    """

    base: Optimizer
    groups: list[Group]
    adaptive: bool
    decouple: bool
    eps: float
    max_grad_norm: float | None
    keeps_direction: bool
    due: bool
    step: int
    averages: bool
    process_group: dist.ProcessGroup | None

    @property
    def params(self) -> list[Tensor]:
        """All parameters."""
        return [param for group in self.groups for param in group.params]

    def gradients(self) -> _Gradients:
        """Returns the gradients there are, each checked to be dense and real."""
        params = [
            param
            for index, group in enumerate(self.base.param_groups)
            for param in params_with_gradients("WSAM", index, group)
        ]
        return {param: param.grad for param in params if param.grad is not None}


@dataclass(slots=True)
class Pass:
    """What is kept between the first backward and the step.

    Args:
        firsts: The first gradient of each parameter, in buffers of WSAM's own.
        saved: The weights before the perturbation; None once they are back.
        statistics: The running statistics after the first pass.
        scaler: The scaler of both losses.
        finite: Under a scaler, whether the first gradient is finite.
        in_block: Whether `perturb` drives the pass.
    """

    firsts: _Gradients
    saved: list[Tensor] | None
    statistics: RunningStatistics | None = None
    scaler: GradScaler | None = None
    finite: Tensor | None = None
    in_block: bool = False

    def put_back(self) -> None:
        """Puts weights and statistics back, bit for bit, and frees the saved ones."""
        if self.saved is not None:
            weights = _local(self.firsts)
            if weights:
                torch._foreach_copy_(weights, self.saved)
            self.saved = None
        if self.statistics is not None:
            self.statistics.restore()
            self.statistics = None


class _Owner:
    """Parameter groups, as much of an optimizer as `GradScaler.unscale_` looks at."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        self.param_groups = [{"params": list(params)}]


def begin(plan: Plan, scaler: GradScaler | None) -> tuple[Pass, object]:
    """Takes the first gradient and perturbs the weights; gradients are left as they are.

    The weights are as before if this raises.

    Args:
        plan: What the step needs.
        scaler: An enabled scaler that scaled the loss, or None.

    Returns:
        The pass, and what must be kept alive until `scaler.update()`, because the
        scaler knows it by its address.
    """
    grads = plan.gradients()
    firsts, buffers = _taken(plan, grads)
    key = _Owner(firsts)
    if scaler is not None and not plan.averages:
        _unscale(scaler, key, firsts)
    weights = _local(firsts)
    current = Pass(firsts, copied(weights))
    try:
        local = _local_grads(firsts)
        squares = norms_squared(local, weights if plan.adaptive else None)
        norm = sums([squares], owners=list(firsts), among=plan.params)[0].sqrt()
        _perturb(plan, firsts, norm)
        if scaler is not None:
            # With an overflow there is no direction to go, and NaN would poison what
            # the model keeps of its second forward; the step is skipped later.
            finite = torch.isfinite(norm)
            for weight, saved in zip(weights, current.saved or (), strict=True):
                there = finite.to(weight.device)
                weight.copy_(torch.where(there, weight, saved))
            current.finite = finite
        if plan.averages:
            for buffer in buffers:
                dist.all_reduce(buffer, group=plan.process_group)
                buffer.div_(dist.get_world_size(plan.process_group))
            if scaler is not None:
                _unscale(scaler, key, firsts)
                squares = norms_squared(local)
                total = sums([squares], owners=list(firsts), among=plan.params)
                current.finite = torch.isfinite(total[0])
    except BaseException:
        current.put_back()
        raise
    return current, key


def step_from_both(plan: Plan, firsts: _Gradients, seconds: _Gradients) -> None:
    """Steps with both gradients; `firsts` are overwritten.

    Args:
        plan: What the step needs.
        firsts: The first gradients.
        seconds: The second gradients; one at least has a first one, if there are any.
    """
    both = [param for param in firsts if param in seconds]
    if plan.averages:
        # Other ranks may have had a first gradient for what this rank never used.
        firsts = {param: firsts[param] for param in both}
    clip_first, clip_second, along, inverse_rms = _scalars(plan, firsts, seconds, both)
    if clip_first is not None:
        grads = _local_grads(firsts)
        add_into_(grads, grads, None, clip=clip_first, by=None)
    given = dict(firsts)
    for group in plan.groups:
        members = [
            param for param in group.params if param in firsts and param in seconds
        ]
        if members and group.weight and not plan.decouple:
            outs = _buffers(members, firsts)
            combine_(
                _local_grads(outs),
                _local_grads(firsts, members),
                _local_grads(seconds, members),
                weight=group.weight,
                clip=clip_second,
            )
            given |= outs
    _step_base(plan, given)
    del given
    rounding = Rounding(2 * plan.step + 1)
    for group in plan.groups:
        members = [
            param for param in group.params if param in firsts and param in seconds
        ]
        if members and group.weight and plan.decouple:
            descend_(
                _local(members),
                _masters(plan.base, members),
                _local_grads(firsts, members),
                _local_grads(seconds, members),
                by=group.rate,
                clip=clip_second,
                rounding=rounding,
            )
    if plan.keeps_direction:
        assert along is not None
        assert inverse_rms is not None
        factor = inverse_rms if clip_second is None else inverse_rms * clip_second
        grads = _local_grads(firsts, both)
        add_into_(
            grads,
            _local_grads(seconds, both),
            grads,
            clip=factor,
            by=-along * inverse_rms,
        )
        for param in plan.params:
            if param in seconds and param in firsts:
                plan.base.state[param][DIRECTION] = firsts[param].to(param.dtype)
            elif param in plan.base.state:
                plan.base.state[param].pop(DIRECTION, None)


def step_from_one(plan: Plan) -> None:
    """Steps with the gradients there are, and the last direction if there is one."""
    firsts = plan.gradients()
    reuses = plan.keeps_direction and not plan.due
    directions = {
        param: plan.base.state[param][DIRECTION]
        for param in firsts
        if reuses and DIRECTION in plan.base.state.get(param, {})
    }
    clip, rms = None, None
    if plan.max_grad_norm is not None or reuses:
        squares = norms_squared(_local_grads(firsts))
        total = sums([squares], owners=list(firsts), among=plan.params)[0]
        clip = clip_factor(total, plan.max_grad_norm)
        rms = (total / _numel(firsts)).sqrt() * (1.0 if clip is None else clip)
    given = firsts
    if clip is not None:
        given = _buffers(firsts, firsts)
        add_into_(_local_grads(given), _local_grads(firsts), None, clip=clip, by=None)
    for group in plan.groups:
        members = [param for param in group.params if param in directions]
        if members and group.weight and not plan.decouple:
            assert rms is not None
            outs = _buffers(members, firsts)
            add_into_(
                _local_grads(outs),
                _local_grads(given, members),
                _local_grads(directions, members),
                clip=None,
                by=rms * group.weight,
            )
            given = given | outs
    _step_base(plan, given)
    del given
    rounding = Rounding(2 * plan.step + 1)
    for group in plan.groups:
        members = [param for param in group.params if param in directions]
        if members and group.weight and plan.decouple:
            assert rms is not None
            descend_(
                _local(members),
                _masters(plan.base, members),
                None,
                _local_grads(directions, members),
                by=rms * group.rate,
                clip=None,
                rounding=rounding,
            )


def _taken(plan: Plan, grads: _Gradients) -> tuple[_Gradients, list[Tensor]]:
    """Returns copies of gradients, and the flat buffers that hold them if averaged.

    A copy, since backward may write the second gradient where the first one is: into
    a bucket of DDP, a flat buffer of the user's, or the memory of a CUDA graph.
    """
    flat: list[Tensor] = []
    if plan.averages:
        params = [param for param in plan.params if param.requires_grad]
        views, flat = packed(params)
        firsts = dict(zip(params, views, strict=True))
    else:
        firsts = {}
        for param, grad in grads.items():
            old = (
                plan.base.state[param].get(DIRECTION)
                if param in plan.base.state
                else None
            )
            if plan.due and old is not None and old.dtype is grad.dtype:
                firsts[param] = old
            else:
                firsts[param] = torch.empty_like(param, dtype=grad.dtype)
    if grads:
        torch._foreach_copy_(_local_grads(firsts, list(grads)), _local_grads(grads))
    return firsts, flat


def _perturb(plan: Plan, firsts: _Gradients, norm: Tensor) -> None:
    inverse = 1 / (norm + plan.eps)
    rounding = Rounding(2 * plan.step)
    for group in plan.groups:
        members = [param for param in group.params if param in firsts]
        if members and group.rho:
            perturb_(
                _local(members),
                _local_grads(firsts, members),
                by=inverse * group.rho,
                adaptive=plan.adaptive,
                rounding=rounding,
            )


def _scalars(
    plan: Plan, firsts: _Gradients, seconds: _Gradients, both: list[Tensor]
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Returns both clip factors, the part of gs along g, and 1 / (rms of g).

    The last two are those of the clipped gradients.
    """
    if plan.max_grad_norm is None and not plan.keeps_direction:
        return None, None, None, None
    ours, theirs = _local_grads(firsts, both), _local_grads(seconds, both)
    columns = [norms_squared(ours), norms_squared(theirs)]
    if plan.keeps_direction:
        columns.append(dots(ours, theirs))
    totals = sums(columns, owners=both, among=plan.params)
    clip_first = clip_factor(totals[0], plan.max_grad_norm)
    clip_second = clip_factor(totals[1], plan.max_grad_norm)
    if not plan.keeps_direction:
        return clip_first, clip_second, None, None
    square, dot = totals[0], totals[2]
    if clip_first is not None and clip_second is not None:
        square, dot = square * clip_first**2, dot * clip_first * clip_second
    zero = torch.zeros_like(square)
    along = torch.where(square > 0, dot / square, zero)
    inverse_rms = torch.where(square > 0, (_numel(both) / square).sqrt(), zero)
    return clip_first, clip_second, along, inverse_rms


def _unscale(scaler: GradScaler, key: _Owner, grads: _Gradients) -> None:
    with _given(list(grads), grads):
        scaler.unscale_(key)  # type: ignore[arg-type]


def _step_base(plan: Plan, given: _Gradients) -> None:
    with _given(plan.params, given):
        plan.base.step()


@contextmanager
def _given(params: list[Tensor], grads: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Sets the gradients of parameters, for a while."""
    before = [param.grad for param in params]
    try:
        for param in params:
            param.grad = grads.get(param)
        yield
    finally:
        for param, grad in zip(params, before, strict=True):
            param.grad = grad


def _buffers(params: Iterable[Tensor], like: _Gradients) -> _Gradients:
    return {param: torch.empty_like(like[param]) for param in params}


def _local(params: Iterable[Tensor]) -> list[Tensor]:
    return [local_part(param) for param in params]


def _local_grads(
    grads: Mapping[Tensor, Tensor], params: Iterable[Tensor] | None = None
) -> list[Tensor]:
    wanted = grads if params is None else params
    return [local_part(grads[param], like=param) for param in wanted]


def _masters(base: Optimizer, params: Sequence[Tensor]) -> list[Tensor | None]:
    states: list[dict[str, Any]] = [base.state.get(param, {}) for param in params]
    masters = [state.get("master") for state in states]
    return [None if master is None else local_part(master) for master in masters]


def _numel(params: Iterable[Tensor]) -> int:
    return max(1, sum(param.numel() for param in params))
