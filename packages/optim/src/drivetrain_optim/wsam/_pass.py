"""The first half of a WSAM step: from a gradient to perturbed weights, and back."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from drivetrain_optim._errors import StepOrderError, UnsupportedTensorError
from drivetrain_optim.batched._state import is_freed, local_part
from drivetrain_optim.checks._tensor_checks import params_with_gradients
from drivetrain_optim.wsam._perturb import Rounding, norms_squared, perturb_, sums

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor
    from torch.amp import GradScaler
    from torch.optim import Optimizer

    from drivetrain_optim.wsam._batch_norm import RunningStatistics

    _Gradients = dict[Tensor, Tensor]

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
            weights = local_parts(self.firsts)
            if any(map(is_freed, weights)):
                message = (
                    "WSAM: the storage of a parameter was freed between the two passes; "
                    "nothing was put back"
                )
                raise UnsupportedTensorError(message)
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
    weights = local_parts(firsts)
    current = Pass(firsts, _copied(weights))
    try:
        local = local_grads(firsts)
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


def check_scaler(scaler: GradScaler, owner: Optimizer) -> None:
    """Raises if a scaler knows of the step whose first pass is to begin.

    Raises:
        StepOrderError: It has unscaled gradients already, or stepped.
    """
    name = _stage(scaler, owner)
    if name not in {None, "READY"}:
        message = (
            "WSAM: the first pass must come before the scaler knows of this step, got "
            f"one in the stage {name}; call scaler.unscale_(wsam) after the second "
            "backward only, and scaler.update() after each step"
        )
        raise StepOrderError(message)


def check_stepped_by(scaler: GradScaler | None, owner: Optimizer) -> None:
    """Raises if a pass that began with a scaler is not ended through it.

    Raises:
        StepOrderError: The scaler has not unscaled the second gradient.
    """
    if scaler is not None and _stage(scaler, owner) == "READY":
        message = (
            "WSAM: a pass that was begun with a scaler must end with scaler.step(wsam) "
            "or second_step(), got step(): the second gradient is still scaled"
        )
        raise StepOrderError(message)


def _stage(scaler: GradScaler, owner: Optimizer) -> str | None:
    """Returns how far a scaler is with a step; None if it does not let that be seen.

    It offers no public way.
    """
    states: Mapping[int, Mapping[str, Any]] | None
    states = getattr(scaler, "_per_optimizer_states", None)
    if states is None:
        return None
    stage = states.get(id(owner), {}).get("stage")
    return str(getattr(stage, "name", "READY"))


def _taken(plan: Plan, grads: _Gradients) -> tuple[_Gradients, list[Tensor]]:
    """Returns copies of gradients, and the flat buffers that hold them if averaged.

    A copy, since backward may write the second gradient where the first one is: into
    a bucket of DDP, a flat buffer of the user's, or the memory of a CUDA graph.
    """
    flat: list[Tensor] = []
    if plan.averages:
        params = [param for param in plan.params if param.requires_grad]
        views, flat = _packed(params)
        firsts = dict(zip(params, views, strict=True))
    else:
        firsts = {}
        for param, grad in grads.items():
            old = plan.base.state.get(param, {}).get(DIRECTION)
            if plan.due and old is not None and old.dtype is grad.dtype:
                firsts[param] = old
            else:
                firsts[param] = torch.empty_like(param, dtype=grad.dtype)
    if grads:
        torch._foreach_copy_(local_grads(firsts, list(grads)), local_grads(grads))
    return firsts, flat


def _perturb(plan: Plan, firsts: _Gradients, norm: Tensor) -> None:
    inverse = 1 / (norm + plan.eps)
    rounding = Rounding(2 * plan.step)
    for group in plan.groups:
        members = [param for param in group.params if param in firsts]
        if members and group.rho:
            perturb_(
                local_parts(members),
                local_grads(firsts, members),
                by=inverse * group.rho,
                adaptive=plan.adaptive,
                rounding=rounding,
            )


def _unscale(scaler: GradScaler, key: _Owner, grads: _Gradients) -> None:
    with given_gradients(list(grads), grads):
        scaler.unscale_(key)  # type: ignore[arg-type]


@contextmanager
def given_gradients(
    params: list[Tensor], grads: Mapping[Tensor, Tensor]
) -> Iterator[None]:
    """Sets the gradients of parameters for a while; None where none is given."""
    before = [param.grad for param in params]
    try:
        for param in params:
            param.grad = grads.get(param)
        yield
    finally:
        for param, grad in zip(params, before, strict=True):
            param.grad = grad


def local_parts(params: Iterable[Tensor]) -> list[Tensor]:
    """Returns this rank's parts of parameters."""
    return [local_part(param) for param in params]


def local_grads(
    grads: Mapping[Tensor, Tensor], params: Iterable[Tensor] | None = None
) -> list[Tensor]:
    """Returns this rank's parts of gradients, of all parameters or some of them."""
    wanted = grads if params is None else params
    return [local_part(grads[param], like=param) for param in wanted]


def _copied(tensors: list[Tensor]) -> list[Tensor]:
    copies = [torch.empty_like(tensor) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, tensors)
    return copies


def _packed(params: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Returns zeros shaped like each parameter, and the flat buffers that hold them."""
    views = list(params)
    buffers = []
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, param in enumerate(params):
        kinds.setdefault((param.device, param.dtype), []).append(index)
    for (device, dtype), indices in kinds.items():
        sizes = [params[index].numel() for index in indices]
        buffer = torch.zeros(sum(sizes), dtype=dtype, device=device)
        for index, piece in zip(indices, torch.split(buffer, sizes), strict=True):
            views[index] = piece.view(params[index].shape)
        buffers.append(buffer)
    return views, buffers
