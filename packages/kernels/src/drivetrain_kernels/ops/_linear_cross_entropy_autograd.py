"""Linear cross-entropy in chunks, as operators that `torch.compile` knows.

`linear_cross_entropy_total` returns the sum of the losses, and in the same pass their
gradients, which the backward only scales. `linear_cross_entropy_losses` returns the loss
of each token; what weight each has comes with the backward, which computes the logits
again.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._fast_path import first_order
from drivetrain_kernels.ops._linear_cross_entropy_chunks import Gradients, run_chunks
from drivetrain_kernels.ops._linear_cross_entropy_steps import Problem
from drivetrain_kernels.ops._vocab_parallel import shard_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain_kernels.ops._vocab_parallel import Shard

NAMESPACE = "drivetrain_kernels"
SCALED_ROWS = 4096


def _prepared(given: Mapping[str, Any]) -> tuple[Problem, Shard]:
    """Returns what an operator computes, and on which shard, by its arguments' names."""
    problem = Problem(**{field.name: given[field.name] for field in fields(Problem)})
    weight = problem.weight
    return problem, shard_of(given["group_name"], len(weight), weight.device)


def _narrowed(
    problem: Problem, gradients: Gradients, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients in a dtype; empty for unwanted ones."""
    empty = problem.hidden.new_empty
    made = []
    for name in ("hidden", "weight", "bias"):
        grad = getattr(gradients, name)
        setattr(gradients, name, None)  # frees the wide sum when it is converted
        made.append(empty(0, dtype=dtype) if grad is None else grad.to(dtype))
    return made[0], made[1], made[2]


def _kept_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns in what dtype gradients wait for the backward.

    In float16 small ones would vanish before the loss scale could prevent it, which
    comes with the backward.
    """
    return torch.float32 if dtype == torch.float16 else dtype


def _fake_gradients(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    wanted: Sequence[bool],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    made = [
        hidden.new_empty(t.shape if is_wanted and t is not None else 0, dtype=dtype)
        for is_wanted, t in zip(wanted, (hidden, weight, bias), strict=True)
    ]
    return made[0], made[1], made[2]


@torch.library.custom_op(f"{NAMESPACE}::linear_cross_entropy_losses", mutates_args=())
def linear_cross_entropy_losses(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    chunk_tokens: int,
    group_name: str,
    with_triton: bool,
) -> Tensor:
    """Returns the loss of each token, shape [num_tokens].

    Args:
        hidden: Shape [num_tokens, hidden_size].
        weight: Shape [num_classes, hidden_size]; with a group, this rank's rows.
        bias: Shape [num_classes], or None.
        target: Shape [num_tokens], int64.
        ignore_index: The target of tokens that count for nothing.
        label_smoothing: The share of the target that all classes divide.
        z_loss: The weight of the squared log-denominator.
        softcap: The cap of the logits, 0 for none.
        chunk_tokens: The tokens of a chunk, 0 for a size that suits the device.
        group_name: The process group over which the classes are divided, "" for none.
        with_triton: Whether Triton kernels pass over the logits of a chunk.

    Example:
        >>> losses = linear_cross_entropy_losses(torch.zeros(2, 3), torch.zeros(4, 3),
        ...     None, torch.tensor([0, 3]), -100, 0.0, 0.0, 0.0, 0, "", False)
        >>> losses.shape
        torch.Size([2])
    """
    problem, shard = _prepared(locals())
    return run_chunks(problem, shard, None)


@linear_cross_entropy_losses.register_fake
def _(hidden: Tensor, *_: Any) -> Tensor:
    return hidden.new_empty(hidden.shape[0], dtype=accumulation_dtype(hidden.dtype))


@torch.library.custom_op(f"{NAMESPACE}::linear_cross_entropy_grads", mutates_args=())
def _grads(
    grad: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    chunk_tokens: int,
    group_name: str,
    with_triton: bool,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the logits again, and from a gradient for each token all gradients."""
    problem, shard = _prepared(locals())
    gradients = Gradients.zeros(problem, (wanted[0], wanted[1], wanted[2]))
    run_chunks(problem, shard, gradients, grad)
    return _narrowed(problem, gradients, hidden.dtype)


@first_order(_grads).register_fake
def _(
    grad: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    del grad
    return _fake_gradients(hidden, weight, bias, rest[-1], hidden.dtype)


@torch.library.custom_op(f"{NAMESPACE}::linear_cross_entropy_total", mutates_args=())
def linear_cross_entropy_total(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    scale: Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    chunk_tokens: int,
    group_name: str,
    with_triton: bool,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the sum of the losses times a scale, and its gradients where wanted.

    Args:
        hidden: Shape [num_tokens, hidden_size].
        weight: Shape [num_classes, hidden_size]; with a group, this rank's rows.
        bias: Shape [num_classes], or None.
        target: Shape [num_tokens], int64.
        scale: What multiplies the sum, one float32 or wider number in a tensor.
        ignore_index: The target of tokens that count for nothing.
        label_smoothing: The share of the target that all classes divide.
        z_loss: The weight of the squared log-denominator.
        softcap: The cap of the logits, 0 for none.
        chunk_tokens: The tokens of a chunk, 0 for a size that suits the device.
        group_name: The process group over which the classes are divided, "" for none.
        with_triton: Whether Triton kernels pass over the logits of a chunk.
        wanted: Whether the gradients of hidden, weight and bias are wanted; an empty
            tensor stands for one that is not.

    Example:
        >>> total, grad, *_ = linear_cross_entropy_total(torch.zeros(2, 3),
        ...     torch.zeros(4, 3), None, torch.tensor([0, 3]), torch.tensor(0.5), -100, 0.0,
        ...     0.0, 0.0, 0, "", False, [True, False, False])
        >>> total, grad.shape
        (tensor(1.3863), torch.Size([2, 3]))
    """
    problem, shard = _prepared(locals())
    gradients = Gradients.zeros(problem, (wanted[0], wanted[1], wanted[2]))
    kept = _kept_dtype(hidden.dtype)
    if kept == hidden.dtype:
        losses = run_chunks(problem, shard, gradients, scale.expand(target.shape))
        return losses.sum() * scale, *_narrowed(problem, gradients, kept)
    losses = run_chunks(problem, shard, gradients)
    dx, dw, db = _narrowed(problem, gradients, kept)
    return losses.sum() * scale, dx.mul_(scale), dw.mul_(scale), db.mul_(scale)


@linear_cross_entropy_total.register_fake
def _(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total = hidden.new_empty((), dtype=accumulation_dtype(hidden.dtype))
    kept = _kept_dtype(hidden.dtype)
    return total, *_fake_gradients(hidden, weight, bias, rest[-1], kept)


def _results(made: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Any]:
    return [t if is_wanted else None for t, is_wanted in zip(made, wanted, strict=True)]


def _scaled(made: Tensor, grad: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a gradient multiplied by that of the loss, in place where it can be."""
    # What a compiler traces must not be changed in place; it saves the copy by itself.
    if type(made) is not Tensor:
        return (made * grad).to(dtype)
    if grad.device.type == "cpu" and float(grad) == 1.0:
        return made.to(dtype)  # on a CPU, looking at a number costs nothing
    if made.dtype == grad.dtype:
        return made.mul_(grad).to(dtype)
    for part in torch.split(made, SCALED_ROWS):
        # Both would be narrow otherwise, and the scale itself rounded.
        part.copy_(part.to(grad.dtype).mul_(grad))
    return made


def _losses_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs[:4])
    ctx.numbers = inputs[4:]


def _losses_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    wanted = list(ctx.needs_input_grad[:3])
    made = _grads(grad, *ctx.saved_tensors, *ctx.numbers, wanted)
    return *_results(made, wanted), *[None] * 8


def _total_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.numbers = inputs[5:12]
    ctx.wanted = inputs[12]
    # Aliases: the outputs themselves would hold the node that holds them.
    ctx.made = [t.detach() for t in output[1:]]


def _total_backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    wanted = ctx.wanted
    if ctx.made is None or torch.is_grad_enabled():
        # The first backward gave the gradients away, scaled in place, so that a second
        # set never exists. A further one through the same graph computes them again. So
        # does one that is itself differentiated: the operator refuses the second
        # derivative, which gradients that are constants would silently leave out.
        *tensors, target, scale = ctx.saved_tensors
        each = (grad * scale).expand(target.shape)
        made = _grads(each, *tensors, target, *ctx.numbers, wanted)
        return *_results(made, wanted), *[None] * 10
    dtype = ctx.saved_tensors[0].dtype
    made = [_scaled(t, grad, dtype) for t in ctx.made]
    ctx.made = None
    return *_results(made, wanted), *[None] * 10


linear_cross_entropy_losses.register_autograd(
    _losses_backward, setup_context=_losses_setup
)
linear_cross_entropy_total.register_autograd(
    _total_backward, setup_context=_total_setup
)
