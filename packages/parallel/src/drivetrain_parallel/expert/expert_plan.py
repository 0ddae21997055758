"""Which layers of a model are layers of experts, found by data flow and proven."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drivetrain_core import Code, PlanError
from drivetrain_core.extending import batch_size, split_batch
from drivetrain_core.numerics.parameter_usage import dropouts
from drivetrain_parallel.collective_channel import CollectiveChannel, rehearse
from drivetrain_parallel.expert.expert_layers import expert_parameters, share_experts
from drivetrain_parallel.proof.copies import proof_copy, with_values
from drivetrain_parallel.proof.outputs import StepOutput, compare, step_output

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertPlan:
    """The layers whose experts ranks share.

    Args:
        degree: Ranks that share them.
        layers: The names of the layers.
        num_experts: Experts of a layer.

    Example:
        >>> plan = ExpertPlan(degree=2, layers=("mlp.experts",), num_experts=4)
        >>> ExpertPlan.from_dict(plan.to_dict()) == plan
        True
    """

    degree: int
    layers: tuple[str, ...]
    num_experts: int

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain data."""
        return {**asdict(self), "layers": list(self.layers)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ExpertPlan:
        """Returns the plan that `to_dict` wrote."""
        return cls(**{**data, "layers": tuple(data["layers"])})


def plan_expert_parallel(
    model: nn.Module,
    batch: Any,
    loss_of: Callable[[nn.Module, Any], Tensor],
    degree: int,
) -> ExpertPlan:
    """Returns how ranks share the experts of a model, proven in this process.

    A layer of experts has a parameter of three dimensions, one matrix an expert, and a
    forward that takes tokens, the chosen experts of each and what these count.

    Args:
        model: The model as written; it is left as it is.
        batch: Samples to prove it on; a multiple of the degree.
        loss_of: Returns the loss of a model on a batch.
        degree: Ranks that share the experts.

    Raises:
        PlanError: The model has no such layer, the degree does not divide the experts,
            or what comes out is not the same.
    """
    model, batch = proof_copy(model, batch, loss_of)
    candidates = {
        name: module
        for name, module in model.named_modules()
        if expert_parameters(module)
    }
    taken = _that_take_tokens(model, candidates, batch, loss_of)
    if not taken:
        raise PlanError(
            Code.NOT_APPLICABLE,
            "mesh",
            because=f"{type(model).__name__} has no layer of experts: parameters with "
            "one matrix an expert, and a forward of (tokens, index, weights)",
            fix="use expert=1",
        )
    numbers = {
        next(iter(expert_parameters(candidates[name]).values())).shape[0]
        for name in taken
    }
    number = min(numbers)
    if any(each % degree for each in numbers):
        raise PlanError(
            Code.NOT_DIVISIBLE,
            "mesh",
            because=f"expert={degree} does not divide {number} experts",
            fix=f"use a divisor of {number}",
        )
    plan = ExpertPlan(degree=degree, layers=tuple(taken), num_experts=number)
    # Ranks that draw other dropout would compare chance.
    for module, probability, _ in dropouts(model):
        setattr(module, probability, 0.0)
    reason = _verdict(model, batch, loss_of, plan)
    if reason:
        raise PlanError(
            Code.NUMERICS,
            "mesh",
            because=f"with expert={degree} {type(model).__name__} does not compute the "
            f"same: {reason}",
            fix="use expert=1",
        )
    return plan


def _that_take_tokens(
    model: nn.Module,
    candidates: Mapping[str, nn.Module],
    batch: Any,
    loss_of: Callable[[nn.Module, Any], Tensor],
) -> list[str]:
    """Returns the names of those that are given tokens, choices and weights."""
    found: list[str] = []
    handles = []
    for name, module in candidates.items():

        def look(_module: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            given = [*args, *kwargs.values()]
            shapes = [a.dim() for a in given if isinstance(a, torch.Tensor)]
            if len(given) != 3 or shapes != [2, 2, 2]:
                return
            tokens, index, weights = given
            is_index = not index.is_floating_point() and index.shape == weights.shape
            if is_index and tokens.shape[0] == index.shape[0]:
                found.append(name)

        handles.append(module.register_forward_pre_hook(look, with_kwargs=True))
    try:
        # With gradients: a program may refuse a loss that has none.
        loss_of(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return list(dict.fromkeys(found))


def _verdict(
    model: nn.Module,
    batch: Any,
    loss_of: Callable[[nn.Module, Any], Tensor],
    plan: ExpertPlan,
) -> str:
    size = batch_size(batch)
    if size % plan.degree:
        return f"{size} samples are no multiple of {plan.degree}"
    parts = split_batch(batch, [size // plan.degree] * plan.degree)
    # As data parallel computes it: some losses are no mean over samples.
    expected = [step_output(model, part, loss_of) for part in parts]
    models = [with_values(model) for _ in parts]

    def act(exchange: CollectiveChannel) -> StepOutput:
        mine = models[exchange.rank]
        layers = [mine.get_submodule(name) for name in plan.layers]
        share_experts(layers, exchange, nn.Parameter)
        return step_output(mine, parts[exchange.rank], loss_of)

    try:
        found = rehearse(act, plan.degree)
    # Whatever the user's code raises when shapes are other than it expects.
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: " + str(error).partition("\n")[0]
    shared = {
        f"{layer}.{name}"
        for layer in plan.layers
        for name in expert_parameters(model.get_submodule(layer))
    }
    for one, other in zip(expected, found, strict=True):
        reason = compare(_without(one, shared), _without(other, shared))
        if reason:
            return reason
    return _compare_experts(expected, found, shared)


def _without(evidence: StepOutput, names: set[str]) -> StepOutput:
    rest = {n: g for n, g in evidence.gradients.items() if n not in names}
    return StepOutput(evidence.loss, rest)


def _compare_experts(
    expected: list[StepOutput], found: list[StepOutput], shared: set[str]
) -> str:
    mean = {
        name: torch.stack([one.gradients[name] for one in expected]).mean(0)
        for name in shared
    }
    whole = {name: torch.cat([one.gradients[name] for one in found]) for name in shared}
    return compare(StepOutput(0.0, mean), StepOutput(0.0, whole))
