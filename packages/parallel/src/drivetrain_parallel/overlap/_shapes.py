"""Ranks tell each other what they bring, so that a mismatch is an error and no hang."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch

from drivetrain_core import DistributedError
from drivetrain_parallel.overlap._errors import OverlapError
from drivetrain_parallel.overlap._messages import Messages, Round, place_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch.distributed as dist

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
"""The types whose products overlap; their order is what ranks tell each other."""

_BACKWARDS = (
    "no message",
    "reduce-scatter",
    "all-gather",
    "reduce-scatter and all-gather",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """What a rank is about to do.

    Args:
        operation: 0 for an all-gather, 1 for a reduce-scatter.
        path: The number of the path.
        num_chunks: The number of chunks that was asked for, 0 for the default.
        dtype: The number of the type.
        backward: What the backward exchanges: 1 for a reduce-scatter, 2 for an
            all-gather, 3 for both, 0 for neither.
        rows: The rows of the rank's tensor.
        row_vectors: The vectors in a row, 1 for a matrix.
        columns: The numbers in a vector.
    """

    operation: int
    path: int
    num_chunks: int
    dtype: int
    backward: int
    rows: int
    row_vectors: int
    columns: int


def agree(
    group: dist.ProcessGroup | None, offer: Offer, device: torch.device, what: str
) -> tuple[int, ...]:
    """Returns the rows of each rank, once all want the same.

    Costs one small message to each rank, and a wait of the host for them.

    Args:
        group: The ranks; None for all.
        offer: What this rank is about to do.
        device: Where the group's messages lie.
        what: The operation, for messages of errors.

    Raises:
        DistributedError: Ranks differ; each of them raises.
    """
    rank, size = place_in(group, what)
    names = [field.name for field in fields(offer)]
    mine = torch.tensor([getattr(offer, n) for n in names], dtype=torch.int64)
    offers = mine.repeat(size, 1).to(device)
    rounds = [
        Round((rank + k) % size, (rank - k) % size, offers[(rank - k) % size])
        for k in range(1, size)
    ]
    own = mine.to(device)
    messages = Messages(group, rounds, in_batches=device.type != "cpu", what=what)
    for at in range(len(rounds)):
        messages.send(at, own)
    for at in range(len(rounds)):
        messages.wait(at)
    messages.finish()
    found = [Offer(**dict(zip(names, each, strict=True))) for each in offers.tolist()]
    problem = disagreement(found)
    if problem:
        message = f"{what}: {problem}"
        raise DistributedError(message)
    return tuple(each.rows for each in found)


def disagreement(offers: Sequence[Offer]) -> str:
    """Returns how the offers of ranks differ where they must not, or an empty string.

    Example:
        >>> offer = Offer(operation=1, path=0, num_chunks=0, dtype=0, backward=0,
        ...               rows=4, row_vectors=1, columns=2)
        >>> disagreement([offer, offer])
        ''
    """
    must_agree = ["operation", "path", "num_chunks", "dtype", "row_vectors", "columns"]
    if offers[0].operation:
        must_agree.append("rows")
    must_agree.append("backward")
    for name in must_agree:
        values = [getattr(offer, name) for offer in offers]
        if len(set(values)) > 1:
            shown: list[object] = list(values)
            if name == "dtype":
                shown = [str(DTYPES[value]) for value in values]
            if name == "backward":
                # One of them would wait for messages that the others do not send.
                name = "backward (as requires_grad and save_gathered have it)"
                shown = [_BACKWARDS[value] for value in values]
            return f"ranks must have equal {name}, by rank they have {shown}"
    return ""


def require_matrices(
    what: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> None:
    """Raises unless a product of a tensor and a weight of `nn.Linear` is possible.

    Raises:
        OverlapError: Shapes, types or devices do not fit.
    """
    tensors = [x, weight] if bias is None else [x, weight, bias]
    if any(hasattr(tensor, "to_local") for tensor in tensors):
        message = (
            f"{what}: takes the local tensors of each rank, got a DTensor; pass "
            "to_local(), or use OverlappedColwiseParallel and OverlappedRowwiseParallel"
        )
        raise OverlapError(message)
    if x.dim() < 2 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        message = (
            f"{what}: x must be (..., rows, ..., K) and weight (N, K), as nn.Linear has "
            f"it, got {tuple(x.shape)} and {tuple(weight.shape)}"
        )
        raise OverlapError(message)
    if bias is not None and bias.shape != weight.shape[:1]:
        message = f"{what}: bias must be ({weight.shape[0]},), got {tuple(bias.shape)}"
        raise OverlapError(message)
    dtypes = [tensor.dtype for tensor in tensors]
    if len(set(dtypes)) > 1 or dtypes[0] not in DTYPES:
        message = (
            f"{what}: all tensors must have one type, out of "
            f"{', '.join(map(str, DTYPES))}; got {', '.join(map(str, dtypes))}"
        )
        raise OverlapError(message)
    devices = {str(tensor.device) for tensor in tensors}
    if len(devices) > 1:
        message = f"{what}: all tensors must be on one device, got {sorted(devices)}"
        raise OverlapError(message)
