"""Takes a batch from a loader without the loader, or the random state, noticing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from drivetrain_core import undisturbed
from drivetrain_kernels._errors import SelectionError


def first_batch(loader: Iterable[Any], device: torch.device) -> Any:
    """Returns the first batch that a new pass over a loader gives, on a device.

    Args:
        loader: An iterable of batches that can be passed over again.
        device: Where to.

    Raises:
        SelectionError: The loader can be passed over only once, or is empty.

    Example:
        >>> first_batch([torch.ones(2)], torch.device("cpu"))
        tensor([1., 1.])
    """
    if isinstance(loader, Iterator):
        message = (
            "the data can be passed over only once, and a first batch would be lost to "
            f"training, got {type(loader).__name__}"
        )
        raise SelectionError(message)
    with undisturbed(loader):
        batch = next(iter(loader), None)
    if batch is None:
        message = "the data holds no batch"
        raise SelectionError(message)

    def moved(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    return pytree.tree_map(moved, batch)
