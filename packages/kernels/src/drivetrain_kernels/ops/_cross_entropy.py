"""Softmax cross-entropy, its loss in float32 or wider; `OP` lists what implements it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._available import triton_missing
from drivetrain_kernels._check import (
    check_device,
    check_distribution,
    check_floating,
    check_integer,
)
from drivetrain_kernels._compiled import compiled_form
from drivetrain_kernels._dispatch import (
    Example,
    Implementation,
    Op,
    not_interpreted,
    reference_form,
)
from drivetrain_kernels._errors import ShapeError
from drivetrain_kernels.ops._loss_options import (
    LossOptions,
    check_target_range,
    class_losses,
    reduce_losses,
)

OP_NAME = "cross_entropy"


@dataclass(frozen=True, kw_only=True, slots=True)
class CrossEntropyFacts:
    """What the choice of an implementation depends on."""

    device: str
    dtype: torch.dtype
    num_tokens: int | torch.SymInt
    num_classes: int
    is_plain: bool


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    return_z_loss: bool = False,
    impl: str = "auto",
) -> Any:
    """Returns the cross-entropy of logits with classes, in float32 or wider.

    With the options left alone it is `torch.nn.functional.cross_entropy` over the last
    dimension, of logits widened to float32. The equations stand at the top of
    `ops/_loss_options.py`.

    Args:
        logits: Shape [..., num_classes].
        target: Shape [...], int64 or int32: classes, or `ignore_index`. One out of
            range is an error on a CPU; on other devices, where looking would wait
            for the device, it gives NaN or an assertion of the device.
        reduction: "mean" over the tokens that count, NaN if none does, as in torch;
            "sum"; or "none" for the loss of each token, shape [...].
        ignore_index: The target of tokens with neither loss nor gradient.
        label_smoothing: The share of the target's weight that all classes divide.
        z_loss: The weight of the squared logarithm of the softmax's denominator, which
            is added to the loss; PaLM took 1e-4.
        softcap: Caps the logits smoothly to within plus and minus this.
        return_z_loss: Whether to return (loss, the z-loss that is in it).
        impl: "auto", or "triton", "torch", "compiled" or "reference".

    Raises:
        DtypeError: logits are not floating-point or targets not integers.
        ShapeError: target has another shape than logits without their last dimension.
        DeviceError: They lie on different devices.
        OptionError: An option has a value that is not allowed.
        IndexRangeError: A target is out of range.
        ImplementationError: The implementation that was named cannot take the call.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
        >>> cross_entropy(logits, torch.tensor([0, 1]), reduction="none")
        tensor([0.2395, 1.0986])
    """
    options = LossOptions(
        op=OP_NAME,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        softcap=softcap,
    )
    found = _facts(logits, target, options)
    check_target_range(target, logits.shape[-1], options)
    target = target.long()
    loss, z_share = OP.run(found, impl, logits, target, options)
    return (loss, z_share.detach()) if return_z_loss else loss


def _facts(logits: Tensor, target: Tensor, options: LossOptions) -> CrossEntropyFacts:
    check_floating(OP_NAME, "logits", logits)
    check_integer(OP_NAME, "target", target)
    if logits.dim() == 0 or logits.shape[-1] == 0:
        message = (
            f"{OP_NAME}: logits must have a last dimension of one class or more, got "
            f"the shape {tuple(logits.shape)}"
        )
        raise ShapeError(message)
    if target.shape != logits.shape[:-1]:
        message = (
            f"{OP_NAME}: target must have the shape {tuple(logits.shape[:-1])}, which "
            f"is that of logits without the classes, got {tuple(target.shape)}"
        )
        raise ShapeError(message)
    check_device(OP_NAME, "target", target, ("logits", logits))
    check_distribution(OP_NAME, "target", target, ("logits", logits))
    return CrossEntropyFacts(
        device=logits.device.type,
        dtype=logits.dtype,
        num_tokens=target.numel(),
        num_classes=logits.shape[-1],
        is_plain=options.is_plain,
    )


def facts(
    logits: Tensor,
    target: Tensor,
    *,
    z_loss: float = 0.0,
    softcap: float | None = None,
    **others: Any,
) -> CrossEntropyFacts:
    """Returns what the choice depends on, for the public function's arguments."""
    others.pop("return_z_loss", None)
    options = LossOptions(op=OP_NAME, z_loss=z_loss, softcap=softcap, **others)
    return _facts(logits, target, options)


def _reference(
    logits: Tensor, target: Tensor, options: LossOptions
) -> tuple[Tensor, Tensor]:
    losses, z_losses = class_losses(logits, target, options)
    return _reduced(losses, z_losses, target, options)


def _reduced(
    losses: Tensor, z_losses: Tensor, target: Tensor, options: LossOptions
) -> tuple[Tensor, Tensor]:
    loss = reduce_losses(losses, target, options)
    return loss, reduce_losses(z_losses, target, options)


def _torch(
    logits: Tensor, target: Tensor, options: LossOptions
) -> tuple[Tensor, Tensor]:
    loss = functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).to(accumulation_dtype(logits.dtype)),
        target.reshape(-1),
        ignore_index=options.ignore_index,
        label_smoothing=options.label_smoothing,
        reduction=options.reduction,
    )
    if options.reduction == "none":
        loss = loss.reshape(target.shape)
    # The mean over no tokens is NaN, which is asked of the loss.
    return loss, reduce_losses(loss.new_zeros(target.shape), target, options)


def _triton(
    logits: Tensor, target: Tensor, options: LossOptions
) -> tuple[Tensor, Tensor]:
    # Importing the kernels imports Triton, which only those need who chose them.
    from drivetrain_kernels.ops._triton_cross_entropy import cross_entropy_triton

    losses, z_losses = cross_entropy_triton(logits, target, options)
    return _reduced(losses, z_losses, target, options)


def _refuse_triton(call: CrossEntropyFacts) -> str | None:
    return triton_missing(call.device)


def _refuse_torch(call: CrossEntropyFacts) -> str | None:
    return None if call.is_plain else "has neither a z-loss nor a soft cap"


def _example(device: torch.device, dtype: torch.dtype) -> Example:
    logits = torch.randn(8, 16, device=device, dtype=dtype)
    return (logits, torch.arange(8, device=device)), {}


OP: Op[CrossEntropyFacts] = Op(
    name=OP_NAME,
    implementations=(
        Implementation(
            name="triton",
            call=_triton,
            refuse=_refuse_triton,
            automatic=not_interpreted,
            because="it reads the logits once, and writes their gradient once",
        ),
        Implementation(
            name="torch",
            call=_torch,
            refuse=_refuse_torch,
            because="torch's fused function has all that was asked for",
        ),
        compiled_form(_reference),
        reference_form(_reference, "it takes every call, on any device"),
    ),
    facts=facts,
    example=_example,
)
