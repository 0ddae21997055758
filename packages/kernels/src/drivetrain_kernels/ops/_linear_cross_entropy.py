"""Cross-entropy of a linear head, without its logits in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._available import (
    torch_function_missing,
    transforms_active,
    triton_missing,
)
from drivetrain_kernels._check import (
    autocast_dtype,
    check_at_least,
    check_device,
    check_distribution,
    check_floating,
    check_integer,
    check_like,
    check_shape,
    check_whole,
    is_distributed,
)
from drivetrain_kernels._dispatch import (
    Example,
    Implementation,
    Op,
    not_interpreted,
    reference_form,
)
from drivetrain_kernels._errors import ShapeError
from drivetrain_kernels.ops._linear_cross_entropy_autograd import (
    linear_cross_entropy_losses,
    linear_cross_entropy_total,
)
from drivetrain_kernels.ops._loss_options import (
    LossOptions,
    check_target_range,
    class_losses,
    reduce_losses,
)
from drivetrain_kernels.ops._vocab_parallel import (
    Shard,
    copy_to_shards,
    sum_over_shards,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

OP_NAME = "linear_cross_entropy"


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearCrossEntropyFacts:
    """What the choice of an implementation depends on."""

    device: str
    dtype: torch.dtype
    num_tokens: int
    num_classes: int
    reduction: str
    is_plain: bool
    is_sharded: bool
    is_distributed: bool


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    chunk_tokens: int | None = None,
    group: ProcessGroup | None = None,
    impl: str = "auto",
) -> Tensor:
    """Returns `cross_entropy(hidden @ weight.T + bias, target)`, in chunks of tokens.

    The logits are computed, used and dropped chunk by chunk, so that the extra memory does
    not depend on the number of tokens. The loss is float32 or wider, and gradients are
    summed in float32 before they are rounded to the dtypes of their tensors. A tensor that
    needs no gradient costs none, and a weight that is tied elsewhere gets its gradients
    summed as usual. Under autocast the tensors are converted as for a linear layer.

    With "mean" or "sum" the gradients are made in the forward pass; the backward scales
    them. With "none" the backward computes the logits again. Gradients of gradients are
    available from "reference" alone.

    Args:
        hidden: Shape [..., hidden_size].
        weight: Shape [num_classes, hidden_size], of the dtype of hidden.
        target: Shape [...], int64 or int32: classes, or `ignore_index`. One out of
            range is an error on a CPU; on other devices, where looking would wait for
            the device, and with a group, it makes the loss NaN.
        bias: Shape [num_classes], or None.
        reduction: "mean" over the tokens that count, NaN if none does; "sum"; or
            "none" for the loss of each token, shape [...].
        ignore_index: The target of tokens with neither loss nor gradient.
        label_smoothing: The share of the target's weight that all classes divide.
        z_loss: The weight of the squared logarithm of the softmax's denominator.
        softcap: Caps the logits smoothly to within plus and minus this.
        chunk_tokens: The tokens of a chunk; None takes what suits the device.
        group: The ranks over which the classes are divided, in their order: `weight` and
            `bias` are this rank's rows, targets are counted over all, and each rank
            passes the same hidden states and gets their whole gradient.
        impl: "auto", or "triton", "chunked", "torch" or "reference".

    Raises:
        DtypeError: A tensor has a dtype that does not fit.
        ShapeError: A tensor has a shape that does not fit.
        DeviceError: Tensors lie on different devices.
        OptionError: An option has a value that is not allowed.
        IndexRangeError: A target is out of range.
        ImplementationError: The implementation that was named cannot take the call.

    Example:
        >>> import torch
        >>> hidden, weight = torch.zeros(2, 4), torch.zeros(10, 4)
        >>> linear_cross_entropy(hidden, weight, torch.tensor([3, 9]))
        tensor(2.3026)
    """
    options = LossOptions(
        op=OP_NAME,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        softcap=softcap,
    )
    hidden, weight, bias = _autocast(hidden, weight, bias)
    found = _facts(hidden, weight, target, bias, options, chunk_tokens, group)
    if group is None:
        check_target_range(target, len(weight), options)
    shape, target = target.shape, target.long()
    if not found.is_distributed:  # where shards may be of different sizes
        hidden = hidden.reshape(target.numel(), hidden.shape[-1])
        target = target.reshape(-1)
    call = (hidden, weight, bias, target, options, chunk_tokens, group)
    losses: Tensor = OP.run(found, impl, *call)
    return losses.reshape(shape) if reduction == "none" else losses


def _autocast(*tensors: Any) -> tuple[Any, ...]:
    """Returns tensors in autocast's dtype where it is on, as for a linear layer."""
    check_floating(OP_NAME, "hidden", tensors[0])
    dtype = autocast_dtype(tensors[0].device)
    if dtype is None:
        return tensors
    return tuple(
        t.to(dtype)
        if isinstance(t, Tensor) and t.is_floating_point() and t.dtype != torch.float64
        else t
        for t in tensors
    )


def _facts(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    options: LossOptions,
    chunk_tokens: int | None,
    group: ProcessGroup | None,
) -> LinearCrossEntropyFacts:
    check_integer(OP_NAME, "target", target)
    check_floating(OP_NAME, "weight", weight)
    check_like(OP_NAME, ("hidden", hidden), ("weight", weight), ("bias", bias))
    if chunk_tokens is not None:
        check_whole(OP_NAME, "chunk_tokens", chunk_tokens)
        check_at_least(OP_NAME, "chunk_tokens", chunk_tokens, 1)
    if hidden.dim() == 0 or weight.dim() != 2 or weight.shape[0] == 0:
        message = (
            f"{OP_NAME}: hidden must have the shape [..., hidden_size] and weight "
            "[num_classes, hidden_size] with one class or more, got "
            f"{tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
        raise ShapeError(message)
    check_shape(OP_NAME, "weight", weight, (weight.shape[0], hidden.shape[-1]))
    check_shape(OP_NAME, "bias", bias, weight.shape[:1])
    check_shape(OP_NAME, "target", target, hidden.shape[:-1])
    check_device(OP_NAME, "target", target, ("hidden", hidden))
    check_distribution(OP_NAME, "target", target, ("hidden", hidden))
    return LinearCrossEntropyFacts(
        device=hidden.device.type,
        dtype=hidden.dtype,
        num_tokens=target.numel(),
        num_classes=weight.shape[0],
        reduction=options.reduction,
        is_plain=options.is_plain,
        is_sharded=group is not None,
        is_distributed=is_distributed(hidden),
    )


def facts(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    chunk_tokens: int | None = None,
    group: ProcessGroup | None = None,
    **options: Any,
) -> LinearCrossEntropyFacts:
    """Checks a call and returns what the choice depends on.

    Args:
        hidden: See `linear_cross_entropy`.
        weight: Likewise.
        target: Likewise.
        bias: Likewise.
        chunk_tokens: Likewise.
        group: Likewise.
        **options: The other options of `linear_cross_entropy`, but `impl`.
    """
    checked = LossOptions(op=OP_NAME, **options)
    hidden, weight, bias = _autocast(hidden, weight, bias)
    return _facts(hidden, weight, target, bias, checked, chunk_tokens, group)


def _chunked(*call: Any, with_triton: bool = False) -> Tensor:
    *tensors, options, chunk_tokens, group = call
    hidden, weight, bias, target = tensors
    numbers = (
        options.ignore_index,
        options.label_smoothing,
        options.z_loss,
        options.softcap or 0.0,
        chunk_tokens or 0,
        "" if group is None else group.group_name,
        with_triton,
    )
    wanted = [t is not None and t.requires_grad for t in (hidden, weight, bias)]
    is_training = torch.is_grad_enabled() and any(wanted)
    if options.reduction == "none" or not is_training:
        losses = linear_cross_entropy_losses(*tensors, *numbers)
        return reduce_losses(losses, target, options)
    scale = torch.ones((), dtype=accumulation_dtype(hidden.dtype), device=hidden.device)
    if options.reduction == "sum":
        return _total(*tensors, scale, *numbers, wanted)
    num_counted = (target != options.ignore_index).sum()
    mean = _total(*tensors, scale / num_counted.clamp(min=1), *numbers, wanted)
    return torch.where(num_counted > 0, mean, math.nan)


def _triton(*arguments: Any) -> Tensor:
    return _chunked(*arguments, with_triton=True)


def _refuse_chunked(call: LinearCrossEntropyFacts) -> str | None:
    missing: str | None = transforms_active()
    return "takes no DTensor" if call.is_distributed else missing


def _refuse_triton(call: LinearCrossEntropyFacts) -> str | None:
    missing: str | None = _refuse_chunked(call) or triton_missing(call.device)
    if missing is not None:
        return missing
    return "knows no vocabulary in shards" if call.is_sharded else None


def _total(*arguments: Any) -> Tensor:
    total: Tensor = linear_cross_entropy_total(*arguments)[0]
    return total


def _torch(*call: Any) -> Tensor:
    hidden, weight, bias, target, options, chunk_tokens, _ = call
    chunking = torch.nn.LinearCrossEntropyOptions(
        batch_chunk_size=chunk_tokens, acc_policy="accurate"
    )
    total: Tensor = functional.linear_cross_entropy(
        hidden,
        weight,
        target,
        linear_bias=bias,
        reduction="sum",
        ignore_index=options.ignore_index,
        label_smoothing=options.label_smoothing,
        options=chunking,
    )
    return reduce_losses(total, target, options)


def _refuse_torch(call: LinearCrossEntropyFacts) -> str | None:
    missing = _refuse_chunked(call) or torch_function_missing(
        "torch.nn.functional.linear_cross_entropy"
    )
    if missing is not None:
        return missing
    if not call.is_plain:
        return "has neither a z-loss nor a soft cap"
    if call.is_sharded:
        return "knows no vocabulary in shards"
    if call.reduction == "none":
        return "computes no loss for each token in chunks, got reduction='none'"
    if call.dtype not in {torch.float32, torch.float64}:
        return f"rounds its loss to the dtype of hidden, got {call.dtype}"
    if call.num_tokens == 0:
        return "needs a token"
    return None


def _torch_automatic(call: LinearCrossEntropyFacts) -> str | None:
    return f"was slower than 'chunked' wherever it was measured, so on {call.device}"


def _reference(*call: Any) -> Tensor:
    hidden, weight, bias, target, options, _, group = call
    if group is None:
        losses, _ = class_losses(
            functional.linear(hidden, weight, bias), target, options
        )
    else:
        losses = _sharded_losses(hidden, weight, bias, target, options, group)
    return reduce_losses(losses, target, options)


def _sharded_losses(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    options: LossOptions,
    group: ProcessGroup,
) -> Tensor:
    shard = Shard(group, len(weight), weight.device)
    logits = functional.linear(copy_to_shards(hidden, shard), weight, bias)
    z = logits.to(accumulation_dtype(logits.dtype))
    if options.softcap is not None:
        z = options.softcap * torch.tanh(z / options.softcap)
    counts = target != options.ignore_index
    local, is_here = shard.owned(target, counts)
    mine = torch.where(is_here, z.gather(1, local.unsqueeze(1)).squeeze(1), 0.0)
    largest = shard.max_(z.detach().amax(1))
    exp_sum = sum_over_shards((z - largest.unsqueeze(1)).exp().sum(1), shard)
    lse = largest + exp_sum.log()
    eps = options.label_smoothing
    losses = lse - (1.0 - eps) * sum_over_shards(mine, shard)
    if eps:
        total = sum_over_shards(z.sum(1), shard)
        losses = losses - eps / shard.num_classes * total
    losses = losses + options.z_loss * lse.square()
    return shard.counted(losses, target, counts)


def _example(device: torch.device, dtype: torch.dtype) -> Example:
    hidden = torch.randn(8, 4, device=device, dtype=dtype)
    weight = torch.randn(16, 4, device=device, dtype=dtype)
    return (hidden, weight, torch.arange(8, device=device)), {}


OP: Op[LinearCrossEntropyFacts] = Op(
    name=OP_NAME,
    implementations=(
        Implementation(
            name="triton",
            call=_triton,
            refuse=_refuse_triton,
            automatic=not_interpreted,
            because="it is 'chunked' with two passes over the logits of a chunk",
        ),
        Implementation(
            name="chunked",
            call=_chunked,
            refuse=_refuse_chunked,
            because="its extra memory does not depend on the number of tokens",
        ),
        Implementation(
            name="torch",
            call=_torch,
            refuse=_refuse_torch,
            automatic=_torch_automatic,
            because="torch's own chunked function has all that was asked for",
        ),
        reference_form(_reference, "it takes every call, on any device"),
    ),
    facts=facts,
    example=_example,
)
