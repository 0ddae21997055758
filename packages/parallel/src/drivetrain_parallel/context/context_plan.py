"""How the blocks of a model are run on a part of the sequence, found by data flow.

The hidden state is split where it enters the first block and joined where it leaves the
last one; what runs before and after sees the whole sequence on every rank. Whatever else
goes into each block by position is split likewise. The plan is proven in threads of this
process before any rank starts.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from drivetrain_core import Code, PlanError
from drivetrain_core.extending import find_blocks, repeated_blocks
from drivetrain_core.numerics.parameter_usage import dropouts
from drivetrain_parallel.collective_channel import CollectiveChannel, rehearse
from drivetrain_parallel.context.context_blocks import share_sequence
from drivetrain_parallel.proof.copies import proof_copy, with_values
from drivetrain_parallel.proof.outputs import StepOutput, compare, step_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor, nn

_MOST_TRIES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextPlan:
    """Where a model's sequence is split and joined.

    Args:
        degree: Ranks that share a sequence.
        container: The name of the list of blocks.
        hidden: The key of the hidden state among a block's arguments.
        split: The dimension of the positions in other arguments, by key.

    Example:
        >>> plan = ContextPlan(degree=2, container="layers", hidden="[0][0]", split={})
        >>> ContextPlan.from_dict(plan.to_dict()) == plan
        True
    """

    degree: int
    container: str
    hidden: str
    split: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ContextPlan:
        """Returns the plan that `to_dict` wrote."""
        return cls(**data)


def plan_context_parallel(
    model: nn.Module,
    batch: Any,
    loss_of: Callable[[nn.Module, Any], Tensor],
    degree: int,
) -> ContextPlan:
    """Returns how ranks share the sequence of a model, proven in this process.

    Args:
        model: The model as written; it is left as it is.
        batch: Samples to prove it on.
        loss_of: Returns the loss of a model on a batch.
        degree: Ranks that share a sequence.

    Raises:
        PlanError: The model has no list of blocks, its attention is none of torch's
            own, its heads or positions are too few, or no split computes the same.
    """
    model, batch = proof_copy(model, batch, loss_of)
    facts = find_blocks(model)
    if facts is None:
        msg = f"{type(model).__name__} has no list of repeated blocks"
        raise _refusal(msg)
    blocks = repeated_blocks(model, facts)
    # Ranks that draw other dropout would compare chance.
    for module, probability, _ in dropouts(model):
        setattr(module, probability, 0.0)
    arguments, expected, calls = _observe(model, blocks, batch, loss_of)
    if calls == 0:
        because = (
            f"the blocks of {type(model).__name__} do not call "
            "torch.nn.functional.scaled_dot_product_attention"
        )
        fix = 'use that, in transformers attn_implementation="sdpa"'
        raise _refusal(because, fix)
    hidden, length = _hidden(arguments)
    if length < degree:
        raise PlanError(
            Code.NOT_DIVISIBLE,
            "mesh",
            because=f"context={degree} ranks cannot share {length} positions",
            fix=f"use context={length} at most",
        )
    reasons = []
    for split in itertools.islice(_splits(arguments, hidden, length), _MOST_TRIES):
        plan = ContextPlan(
            degree=degree, container=facts.container, hidden=hidden, split=split
        )
        reason = _verdict(model, batch, loss_of, plan, expected)
        if not reason:
            return plan
        reasons.append(reason)
    raise PlanError(
        Code.NUMERICS,
        "mesh",
        because=f"with context={degree} {type(model).__name__} does not compute the "
        f"same: {reasons[0]}",
        fix="use context=1",
    )


def _refusal(because: str, fix: str = "use context=1") -> PlanError:
    return PlanError(Code.NOT_APPLICABLE, "mesh", because=because, fix=fix)


class _Calls(torch.overrides.TorchFunctionMode):
    """Counts the attentions."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.number += 1
        return func(*args, **(kwargs or {}))


def _observe(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    batch: Any,
    loss_of: Callable[[nn.Module, Any], Tensor],
) -> tuple[dict[str, Tensor], StepOutput, int]:
    """Returns what goes into the first block by key, and what the model computes."""
    seen: list[Any] = []

    def look(_module: nn.Module, args: Any, kwargs: Any) -> None:
        seen.append((args, kwargs))

    handle = blocks[0].register_forward_pre_hook(look, with_kwargs=True)
    counter = _Calls()
    try:
        with counter:
            expected = step_output(model, batch, loss_of)
    finally:
        handle.remove()
    if len(seen) != 1:
        because = f"its first block runs {len(seen)} times in a pass"
        raise _refusal(because)
    leaves, _ = pytree.tree_flatten_with_path(seen[0])
    tensors = {
        pytree.keystr(path): leaf.detach()
        for path, leaf in leaves
        if isinstance(leaf, torch.Tensor)
    }
    return tensors, expected, counter.number


def _hidden(arguments: Mapping[str, Tensor]) -> tuple[str, int]:
    """Returns the key of the hidden state, and how many positions it has."""
    for key, tensor in arguments.items():
        if tensor.dim() == 3 and tensor.is_floating_point():
            return key, tensor.shape[1]
    because = "the first block gets no hidden state of (samples, positions, width)"
    raise _refusal(because)


def _splits(
    arguments: Mapping[str, Tensor], hidden: str, length: int
) -> Iterator[dict[str, int]]:
    """Yields which arguments are split along which dimension, the likely ones first."""
    choices: list[list[int | None]] = []
    keys = [key for key in arguments if key != hidden]
    for key in keys:
        shape = arguments[key].shape
        dims = [dim for dim, number in enumerate(shape) if number == length]
        if not dims:
            choices.append([None])
        elif "mask" in key or len(shape) > 3:
            # What attention sees is whole: each rank has all positions there.
            choices.append([None, *dims])
        else:
            choices.append([*dims, None])
    for found in itertools.product(*choices):
        yield {
            key: dim for key, dim in zip(keys, found, strict=True) if dim is not None
        }


def _verdict(
    model: nn.Module,
    batch: Any,
    loss_of: Callable[[nn.Module, Any], Tensor],
    plan: ContextPlan,
    expected: StepOutput,
) -> str:
    """Returns why a plan does not compute the same; empty if it does."""
    models = [with_values(model) for _ in range(plan.degree)]

    def act(exchange: CollectiveChannel) -> StepOutput:
        mine = models[exchange.rank]
        blocks = repeated_blocks(mine, find_blocks(mine))
        share_sequence(blocks, exchange, plan.hidden, plan.split)
        return step_output(mine, batch, loss_of)

    try:
        found = rehearse(act, plan.degree)
    except PlanError as error:
        if error.code is Code.NOT_DIVISIBLE:
            raise
        return error.because
    # Whatever the user's code raises when shapes are other than it expects.
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: " + str(error).partition("\n")[0]
    for one in found:
        if one.gradients.keys() != found[0].gradients.keys():
            return "ranks have gradients of other parameters"
    mean = {
        name: torch.stack([one.gradients[name] for one in found]).mean(0)
        for name in found[0].gradients
    }
    losses = [one.loss for one in found]
    furthest = max(losses, key=lambda loss: abs(loss - expected.loss))
    return compare(expected, StepOutput(furthest, mean))
