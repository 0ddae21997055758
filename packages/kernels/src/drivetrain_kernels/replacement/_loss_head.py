"""The loss of causal language models of transformers, by `cross_entropy`.

A model of transformers calls its `loss_function`, which can be set on the instance. The
one of causal models widens the logits to float32 first, which the op does not need.
"""

from __future__ import annotations

import functools
import inspect
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from drivetrain_kernels.ops import _cross_entropy

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_kernels.ops._cross_entropy import CrossEntropyFacts

ATTRIBUTE = "_loss_function"
_VOCABULARY = 19


def head_of(module: nn.Module) -> Callable[..., Any] | None:
    """Returns the causal loss that a model computes with, if it is of transformers.

    Args:
        module: Any module.
    """
    if not isinstance(getattr(type(module), "loss_function", None), property):
        return None
    # Some models have the property, and compute their loss otherwise.
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    if code is None or "loss_function" not in code.co_names:
        return None
    found: Any = module.loss_function
    return found if getattr(found, "__name__", "") == "ForCausalLMLoss" else None


@functools.cache
def causal_loss(impl: str) -> Callable[..., Tensor]:
    """Returns a loss of the signature that models of transformers call.

    Args:
        impl: The implementation of `cross_entropy`.
    """
    return functools.partial(_causal_loss, impl=impl)


def _causal_loss(
    logits: Tensor,
    labels: Tensor | None,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    *,
    impl: str,
    **kwargs: Any,
) -> Tensor:
    del kwargs  # As the function of transformers does: they are for other losses.
    if shift_labels is None:
        if labels is None:
            message = "the loss needs labels or shift_labels, got neither"
            raise ValueError(message)
        # Token n predicts token n + 1.
        padded = functional.pad(labels, (0, 1), value=ignore_index)
        shift_labels = padded[..., 1:]
    target = shift_labels.reshape(-1).to(logits.device)
    loss: Tensor = _cross_entropy.cross_entropy(
        logits.reshape(-1, vocab_size),
        target,
        reduction="mean" if num_items_in_batch is None else "sum",
        ignore_index=ignore_index,
        impl=impl,
    )
    if num_items_in_batch is None:
        return loss
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(loss.device)
    return loss / num_items_in_batch


def loss_facts(device: torch.device, dtype: torch.dtype) -> CrossEntropyFacts:
    """Returns the facts of a call of the op by a language model.

    Args:
        device: Of the logits.
        dtype: Likewise.
    """
    logits, labels = _sample(device, dtype)
    target = labels.reshape(-1)
    return _cross_entropy.facts(logits.reshape(-1, _VOCABULARY), target)


def loss_disagreement(
    plain: Callable[..., Any],
    ours: Callable[..., Any],
    device: torch.device,
    dtype: torch.dtype,
) -> float:
    """Returns the largest relative difference of losses and of gradients.

    Args:
        plain: The model's own loss.
        ours: What would stand in for it.
        device: Of the logits.
        dtype: Likewise.
    """
    logits, labels = _sample(device, dtype)
    worst = 0.0
    for num_items in (None, 7):
        values = []
        for loss in (plain, ours):
            leaf = logits.clone().requires_grad_()
            with torch.enable_grad():
                value = loss(leaf, labels, _VOCABULARY, num_items_in_batch=num_items)
                (grad,) = torch.autograd.grad(value, leaf)
            values.append((value.detach().double(), grad.double()))
        for one, other in zip(*values, strict=True):
            worst = max(worst, float((one - other).norm() / one.norm()))
    return math.inf if math.isnan(worst) else worst


def _sample(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, _VOCABULARY, generator=generator).to(device, dtype)
    labels = torch.randint(0, _VOCABULARY, (2, 5), generator=generator).to(device)
    labels[0, 2] = -100
    return logits, labels
