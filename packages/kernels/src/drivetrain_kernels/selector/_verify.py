"""Whether a candidate computes what eager computes: the loss and every gradient.

Eager's own error sets the measure, against a run in float64 and under a change of the
last digits: a candidate may err as much a few times over. Errors are norms of
differences over norms; a gradient that is tiny beside the others is measured by them,
because its own digits are rounding.

Where the model draws random numbers, Inductor draws others than eager from the same
seed. Then the means of several seeds are compared, with the spread of eager's own.
"""

from __future__ import annotations

import copy
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drivetrain_kernels.selector._workload import Workload

# Relative to the norm; several times the rounding of a sum of some thousand terms.
_FLOORS = {
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}
_ALLOWED = 8.0  # times eager's own error
_USUAL = 1.25  # times the floor: eager's own error where it cannot be measured
_MOST = 10.0  # times the root of the floor: no error is so large by rounding
_NUM_SHAKEN = 2
_SHAKE = {torch.float16: 1.0, torch.bfloat16: 1.0}  # epsilons; of wider ones:
_SHAKE_WIDE = 8.0
_SMALL = 1e-3  # of the norm of all gradients: below it a gradient has no scale itself
_NUM_SEEDS = 8
_SIGMAS = 6.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The loss and the gradients of one step."""

    loss: Tensor
    grads: list[Tensor | None]

    def norms(self) -> tuple[float, float]:
        """Returns the loss and the norm of all gradients."""
        return float(self.loss), _norm(self.grads)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What eager computes, and how near a candidate has to come.

    Args:
        outcomes: Of each batch that is compared.
        tolerance: The largest relative error allowed.
        random: Whether another seed gives another result.
    """

    outcomes: list[Outcome]
    tolerance: float
    random: bool


def reference_of(workload: Workload, tolerance: float | None) -> Reference:
    """Runs eager and measures its own error.

    Args:
        workload: What runs.
        tolerance: As the user gave it; None to derive it from eager's own error.
    """
    batches = _compared(workload)
    outcomes = [_outcome(workload, workload.target, b, seed=0) for b in batches]
    others = [_outcome(workload, workload.target, b, seed=1) for b in batches]
    pairs = list(zip(outcomes, others, strict=True))
    dtypes = {t.dtype for t in workload.leaves} & _FLOORS.keys()
    floor = max((_FLOORS[d] for d in dtypes), default=_FLOORS[torch.float32])
    random = any(_distance(a, b) > floor for a, b in pairs)
    if tolerance is None:
        # A random model draws otherwise in float64, which would say nothing.
        own = None if random else _own_error(workload, outcomes[0])
        own_or_usual = _USUAL * floor if own is None else own
        tolerance = min(max(floor, _ALLOWED * own_or_usual), _MOST * math.sqrt(floor))
    return Reference(outcomes=outcomes, tolerance=tolerance, random=random)


def difference(
    workload: Workload, call: Callable[..., Any], reference: Reference
) -> str:
    """Returns how a candidate differs from eager, or an empty string.

    Args:
        workload: What runs.
        call: The candidate, switched on.
        reference: What eager computes.
    """
    batches = _compared(workload)
    worst = 0.0
    for batch, expected in zip(batches, reference.outcomes, strict=True):
        found = _outcome(workload, call, batch, seed=0)
        worst = max(worst, _distance(expected, found))
    if worst <= reference.tolerance:
        return ""
    if reference.random and math.isfinite(worst):
        found_norms = _norms(workload, call)
        return spread_difference(_norms(workload, workload.target), found_norms)
    return (
        f"its results differ by {worst:.1e}, allowed are {reference.tolerance:.1e} "
        "(tolerance)"
    )


def spread_difference(
    eager: Sequence[tuple[float, float]], found: Sequence[tuple[float, float]]
) -> str:
    """Returns how means of random steps differ beyond their spread, or nothing.

    Args:
        eager: Loss and gradient norm of eager, by seed.
        found: The same of the candidate.

    Example:
        >>> spread_difference([(1.0, 2.0), (1.2, 2.2)], [(1.1, 2.1), (1.3, 2.0)])
        ''
        >>> spread_difference([(1.0, 2.0), (1.1, 2.1)], [(9.0, 2.0), (9.1, 2.1)])
        'its mean loss over 2 seeds is 9.05, eager has 1.05'
    """
    for index, what in enumerate(("loss", "gradient norm")):
        ours, theirs = ([v[index] for v in s] for s in (eager, found))
        apart = abs(statistics.fmean(ours) - statistics.fmean(theirs))
        noise = statistics.stdev(ours) + statistics.stdev(theirs)
        bound = _SIGMAS * noise / math.sqrt(len(ours))
        if not apart <= bound + 1e-6 * abs(statistics.fmean(ours)):
            return (
                f"its mean {what} over {len(ours)} seeds is "
                f"{statistics.fmean(theirs):.4g}, eager has {statistics.fmean(ours):.4g}"
            )
    return ""


def _compared(workload: Workload) -> list[Any]:
    first, last = workload.batches[0], workload.batches[-1]
    return [first] if len(workload.batches) == 1 else [first, last]


def _outcome(
    workload: Workload, call: Callable[..., Any], batch: Any, *, seed: int
) -> Outcome:
    torch.manual_seed(seed)
    loss = workload.run(call, batch).clone()
    grads = [None if p.grad is None else _numbers(p.grad) for p in workload.leaves]
    return Outcome(loss=loss, grads=grads)


def _numbers(grad: Tensor) -> Tensor:
    dense = grad.to_dense().clone()
    return torch.view_as_real(dense) if dense.is_complex() else dense


def _norms(workload: Workload, call: Callable[..., Any]) -> list[tuple[float, float]]:
    batch = workload.batches[0]
    seeds = range(_NUM_SEEDS)
    return [_outcome(workload, call, batch, seed=s).norms() for s in seeds]


def _distance(expected: Outcome, found: Outcome) -> float:
    """Returns the largest relative error; infinite where a gradient is missing."""
    scale = max(abs(float(expected.loss)), _SMALL)
    worst = abs(float(expected.loss) - float(found.loss)) / scale
    least = _SMALL * _norm(expected.grads)
    for ours, theirs in zip(expected.grads, found.grads, strict=True):
        if ours is None and theirs is None:
            continue
        if ours is None or theirs is None:
            return math.inf
        apart = float(torch.linalg.vector_norm(ours.double() - theirs.double()))
        own = max(float(torch.linalg.vector_norm(ours.double())), least)
        if apart:
            worst = max(worst, apart / own if own else math.inf)
    both_nan = math.isnan(float(expected.loss)) and math.isnan(float(found.loss))
    return math.inf if math.isnan(worst) and not both_nan else worst


def _norm(grads: Sequence[Tensor | None]) -> float:
    squares = [float(g.double().square().sum()) for g in grads if g is not None]
    return math.sqrt(math.fsum(squares))


def _own_error(workload: Workload, eager: Outcome) -> float | None:
    """Returns how far rounding takes eager, or None where that cannot be measured.

    It is the error against float64, and what a change of the parameters by a few of
    their last digits does: rounding tips a ReLU or a maximum over, here and there, and
    the gradient then differs by far more than the digits.
    """
    module = workload.module
    if module is None:
        return None
    batch = workload.batches[0]
    try:
        wide = copy.deepcopy(module).double()
        exact = _on_copy(workload, wide, pytree.tree_map(_widened, batch))
        errors = [_distance(exact, _without_inputs(eager, exact))]
        shaken = copy.deepcopy(module)
        for seed in range(_NUM_SHAKEN):
            _shake(shaken, seed)
            other = _on_copy(workload, shaken, batch)
            errors.append(_distance(_without_inputs(eager, other), other))
    except Exception:  # noqa: BLE001
        # Some models fix a dtype inside; then the floor of the dtype has to do.
        return None
    error = max(errors)
    return error if math.isfinite(error) else None


def _on_copy(workload: Workload, module: nn.Module, batch: Any) -> Outcome:
    other = copy.copy(workload)
    other.target = module
    other.leaves = [p for p in module.parameters() if p.requires_grad]
    return _outcome(other, module, batch, seed=0)


def _without_inputs(eager: Outcome, other: Outcome) -> Outcome:
    return Outcome(loss=eager.loss, grads=eager.grads[: len(other.grads)])


def _shake(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            if not p.is_floating_point():
                continue
            size = _SHAKE.get(p.dtype, _SHAKE_WIDE) * torch.finfo(p.dtype).eps
            noise = torch.randn(p.shape, generator=generator).to(p.device)
            p.mul_((1.0 + size * noise).to(p.dtype))


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.detach().double()
    return value
