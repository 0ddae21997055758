"""Checksums of tensors, whatever device, and of samples, whatever their dtype as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core._data.batch import batch_size, split_batch, tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# The finalizer of SplitMix64 (Steele, Lea and Flood, 2014), in signed arithmetic.
_MIX = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
_GOLDEN = -0x61C8864680B583EB
_CHUNK = 1 << 22
_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def tensor_checksum(tensor: torch.Tensor) -> int:
    """Returns a checksum of the bits of a tensor.

    Example:
        >>> one, other = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
        >>> tensor_checksum(one) == tensor_checksum(one.clone())
        True
        >>> tensor_checksum(one) == tensor_checksum(other)
        False
    """
    flat = tensor.detach().reshape(1, -1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(1, -1)
    if not flat.numel():
        return 0
    return int(_sums(flat.view(_OF_SIZE[flat.element_size()]), seed=0))


def row_checksums(batch: Any) -> torch.Tensor:
    """Returns a checksum of each sample of a batch, over all of its tensors.

    Floating values are taken as bfloat16, so that a sample keeps its checksum when a
    plan stores it in fewer bits.

    Example:
        >>> batch = (torch.randn(3, 2), torch.tensor([0, 1, 0]))
        >>> swapped = (batch[0].flip(0), batch[1].flip(0))
        >>> row_checksums(batch).flip(0).equal(row_checksums(swapped))
        True
    """
    size = batch_size(batch)
    if rows := [t for t in tensors_of(batch) if t.ndim and t.shape[0] == size]:
        return _total(rows, size)
    # Lists hold the samples one by one.
    parts = [tensors_of(part) for part in split_batch(batch, [1] * size)]
    return torch.cat([_total([t.unsqueeze(0) for t in part], 1) for part in parts])


def _total(rows: Sequence[torch.Tensor], size: int) -> torch.Tensor:
    sums = [_row_sums(t.detach(), size, seed) for seed, t in enumerate(rows, start=1)]
    return sum((s.cpu() for s in sums), start=torch.zeros(size, dtype=torch.int64))


def _row_sums(tensor: torch.Tensor, size: int, seed: int) -> torch.Tensor:
    """Returns a sum of each row of a tensor of any layout, without making it dense."""
    if tensor.is_nested:
        samples = [_comparable(one).reshape(1, -1) for one in tensor.unbind()]
        return torch.cat([_sums(one, seed) for one in samples])
    if tensor.layout is torch.strided:
        return _sums(_comparable(tensor).reshape(size, -1), seed)
    pairs = tensor.to_sparse(layout=torch.sparse_coo).coalesce()
    values = _comparable(pairs.values())
    values = values.reshape(values.shape[0], values[:1].numel())
    rows, places = pairs.indices()[0], torch.zeros_like(pairs.indices()[0])
    for dim, index in enumerate(pairs.indices()[1:], start=1):
        places = places * tensor.shape[dim] + index
    each = _mixed(_sums(values, seed) + _mixed((places + 1) * _GOLDEN + seed))
    sums = torch.zeros(size, dtype=torch.int64, device=tensor.device)
    return _mixed(sums.index_add_(0, rows, each) + seed)


def gathered(value: Any) -> list[Any]:
    """Returns the plain value of every rank, in order; of this process if alone."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [value]
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, value)
    return found


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.is_floating_point():
        try:
            return tensor.to(torch.bfloat16).view(torch.int16)
        # The device has no such format, or no memory left.
        except (NotImplementedError, RuntimeError):
            return tensor.cpu().to(torch.bfloat16).view(torch.int16)
    return tensor


def _sums(rows: torch.Tensor, seed: int) -> torch.Tensor:
    """Returns the sum of each row's mixed values; places are part of the mix."""
    sums = torch.zeros(rows.shape[0], dtype=torch.int64, device=rows.device)
    for start, part in _columns(rows):
        places = torch.arange(start + 1, start + 1 + part.shape[1], device=rows.device)
        # int64 wraps around, on every device alike.
        sums += _mixed(part.long() + _mixed(places * _GOLDEN + seed)).sum(1)
    return _mixed(sums + seed)


def _columns(rows: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields column by column as much as memory should hold eight-fold."""
    width = max(1, _CHUNK // max(1, rows.shape[0]))
    for start in range(0, rows.shape[1], width):
        yield start, rows[:, start : start + width]


def _mixed(values: torch.Tensor) -> torch.Tensor:
    for factor, shift in zip(_MIX, (30, 27), strict=True):
        values = (values ^ (values >> shift)) * factor
    return values ^ (values >> 31)
