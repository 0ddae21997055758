"""Runs of a model that leave nothing behind, and take the same way every time.

A plan is proven by running the user's model on one rank only. What such a run changes,
this rank would start to train with, and the others would not.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core.accelerators import isolated_rng

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Puts the buffers of a model and the random state back afterwards.

    Args:
        model: What is run inside.

    Example:
        >>> norm, before = torch.nn.BatchNorm1d(2), torch.get_rng_state()
        >>> with undisturbed(norm):
        ...     _ = norm(torch.rand(4, 2))
        >>> norm.running_mean.tolist(), torch.equal(before, torch.get_rng_state())
        ([0.0, 0.0], True)
    """
    kept = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        with isolated_rng():
            yield
    finally:
        with torch.no_grad():
            for module, name, buffer, values in kept:
                module._buffers[name] = buffer
                if not _same(buffer, values):
                    buffer.copy_(values)


def changed_buffers(model: nn.Module, run: Callable[[], Any]) -> list[str]:
    """Returns the names of the buffers that a run changes; they are put back.

    Args:
        model: The model.
        run: Runs it forward.

    Example:
        >>> norm = torch.nn.BatchNorm1d(2)
        >>> changed_buffers(norm, lambda: norm(torch.rand(4, 2)))
        ['running_mean', 'running_var', 'num_batches_tracked']
    """
    with undisturbed(model):
        before = {name: b.detach().clone() for name, b in model.named_buffers()}
        run()
        after = dict(model.named_buffers())
        return [
            name
            for name, values in before.items()
            if name not in after or not _same(after[name], values)
        ]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_meta or other.is_meta or one.shape != other.shape:
        return one.is_meta == other.is_meta and one.shape == other.shape
    return bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
