"""The second half of a WSAM step: from gradients to an update by the base optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from drivetrain_optim.batched._state import local_part
from drivetrain_optim.wsam._pass import (
    DIRECTION,
    given_gradients,
    local_grads,
    local_parts,
)
from drivetrain_optim.wsam._perturb import (
    Rounding,
    add_into_,
    clip_factor,
    combine_,
    descend_,
    dots,
    norms_squared,
    sums,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor
    from torch.optim import Optimizer

    from drivetrain_optim.wsam._pass import Group, Plan

    _Gradients = dict[Tensor, Tensor]


def step_from_both(plan: Plan, firsts: _Gradients, seconds: _Gradients) -> None:
    """Steps with both gradients; `firsts` are overwritten.

    Args:
        plan: What the step needs.
        firsts: The first gradients.
        seconds: The second gradients; one at least has a first one, if there are any.
    """
    both = {param: firsts[param] for param in firsts if param in seconds}
    if plan.averages:
        # Other ranks may have had a first gradient for what this rank never used.
        firsts = both
    clip_first, clip_second, along, inverse_rms = _scalars(plan, both, seconds)
    if clip_first is not None:
        grads = local_grads(firsts)
        add_into_(grads, grads, None, clip=clip_first, by=None)
    given = dict(firsts)
    if both and (plan.decouple or plan.keeps_direction):
        # A base may write into what it is given, as SGD's foreach does with nesterov.
        given |= (copies := _buffers(both, firsts))
        torch._foreach_copy_(local_grads(copies), local_grads(both))
    for group, members in () if plan.decouple else _weighed(plan, both):
        outs = _buffers(members, firsts)
        combine_(
            local_grads(outs),
            local_grads(firsts, members),
            local_grads(seconds, members),
            weight=group.weight,
            clip=clip_second,
        )
        given |= outs
    _step_base(plan, given)
    del given
    rounding = Rounding(2 * plan.step + 1)
    for group, members in _weighed(plan, both) if plan.decouple else ():
        descend_(
            local_parts(members),
            _masters(plan.base, members),
            local_grads(firsts, members),
            local_grads(seconds, members),
            by=group.rate,
            clip=clip_second,
            rounding=rounding,
        )
    if along is not None and inverse_rms is not None:
        factor = inverse_rms if clip_second is None else inverse_rms * clip_second
        grads, ends = local_grads(both), local_grads(seconds, both)
        add_into_(grads, ends, grads, clip=factor, by=-along * inverse_rms)
        _keep(plan, both)


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
        squares = norms_squared(local_grads(firsts))
        total = sums([squares], owners=list(firsts), among=plan.params)[0]
        clip = clip_factor(total, plan.max_grad_norm)
        rms = (total / _numel(firsts)).sqrt() * (1.0 if clip is None else clip)
    given = firsts
    if clip is not None:
        given = _buffers(firsts, firsts)
        add_into_(local_grads(given), local_grads(firsts), None, clip=clip, by=None)
    # Without a direction there is no rms, and no group to go through.
    by = torch.ones(()) if rms is None else rms
    for group, members in () if plan.decouple else _weighed(plan, directions):
        outs = _buffers(members, firsts)
        add_into_(
            local_grads(outs),
            local_grads(given, members),
            local_grads(directions, members),
            clip=None,
            by=by * group.weight,
        )
        given = given | outs
    _step_base(plan, given)
    del given
    rounding = Rounding(2 * plan.step + 1)
    for group, members in _weighed(plan, directions) if plan.decouple else ():
        descend_(
            local_parts(members),
            _masters(plan.base, members),
            None,
            local_grads(directions, members),
            by=by * group.rate,
            clip=None,
            rounding=rounding,
        )


def make_empty_state(plan: Plan) -> None:
    """Steps the base alone, at the learning rate of 0 that torch's helpers have set."""
    plan.base.step()
    if plan.keeps_direction:
        for param in plan.gradients():
            plan.base.state[param][DIRECTION] = torch.zeros_like(param)


def _weighed(plan: Plan, among: _Gradients) -> Iterator[tuple[Group, list[Tensor]]]:
    """Yields the groups that weigh sharpness, with those of their parameters."""
    for group in plan.groups:
        members = [param for param in group.params if param in among]
        if members and group.weight:
            yield group, members


def _keep(plan: Plan, directions: _Gradients) -> None:
    for param in plan.params:
        if param in directions:
            plan.base.state[param][DIRECTION] = directions[param].to(param.dtype)
        elif param in plan.base.state:
            plan.base.state[param].pop(DIRECTION, None)


def _scalars(
    plan: Plan, both: _Gradients, seconds: _Gradients
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Returns both clip factors, the part of gs along g, and 1 / (rms of g).

    The last two are those of the clipped gradients.
    """
    if plan.max_grad_norm is None and not plan.keeps_direction:
        return None, None, None, None
    ours, theirs = local_grads(both), local_grads(seconds, both)
    columns = [norms_squared(ours), norms_squared(theirs)]
    if plan.keeps_direction:
        columns.append(dots(ours, theirs))
    totals = sums(columns, owners=list(both), among=plan.params)
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


def _step_base(plan: Plan, given: _Gradients) -> None:
    with given_gradients(plan.params, given):
        plan.base.step()


def _buffers(params: Iterable[Tensor], like: _Gradients) -> _Gradients:
    return {param: torch.empty_like(like[param]) for param in params}


def _masters(base: Optimizer, params: Sequence[Tensor]) -> list[Tensor | None]:
    states: list[dict[str, Any]] = [base.state.get(param, {}) for param in params]
    masters = [state.get("master") for state in states]
    return [None if master is None else local_part(master) for master in masters]


def _numel(params: Iterable[Tensor]) -> int:
    return max(1, sum(param.numel() for param in params))
