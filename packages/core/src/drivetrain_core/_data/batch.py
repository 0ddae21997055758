"""Batches as trees of tensors: their size, signature, parts, and way to the device.

A batch is a tensor, or a tuple, list, named tuple, mapping or dataclass of batches.
Divided is every tensor whose first dimension is the batch's size, and every tuple or
list that is as long and holds no such tensor: texts, or images of several sizes. Anything
else goes to each part whole.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from drivetrain_core._errors import ProgramError

if TYPE_CHECKING:
    import torch


def _is_tensor(value: object) -> bool:
    # By attribute, so that this module does not import torch for its annotations.
    # Of the class: some dictionaries answer to any attribute, and raise what they like.
    return hasattr(type(value), "untyped_storage")


def map_tensors(function: Callable[[torch.Tensor], Any], batch: Any) -> Any:
    """Returns a batch of the same structure with every tensor replaced.

    Example:
        >>> import torch
        >>> map_tensors(lambda t: t.shape[0], {"x": torch.ones(2, 3), "note": "a"})
        {'x': 2, 'note': 'a'}
    """
    if _is_tensor(batch):
        return function(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(function, part) for part in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(map_tensors(function, part) for part in batch)
    if isinstance(batch, Mapping):
        return _like(batch, {k: map_tensors(function, v) for k, v in batch.items()})
    if _is_record(batch):
        fields = _fields(batch)
        return _with_fields(
            batch, {k: map_tensors(function, v) for k, v in fields.items()}
        )
    return batch


def _like(mapping: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    """Returns a mapping of the same class, such as a `defaultdict`, with new values."""
    if type(mapping) is dict:
        return parts
    if not isinstance(mapping, MutableMapping):
        return type(mapping)(parts)  # type: ignore[call-arg]
    same = copy.copy(mapping)
    for key, part in parts.items():
        same[key] = part
    return same


def _is_record(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(record: Any) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(record))
    return {name: getattr(record, name) for name in names if hasattr(record, name)}


def _with_fields(record: Any, fields: dict[str, Any]) -> Any:
    """Returns a copy with new values, of a frozen dataclass as well."""
    same = copy.copy(record)
    for name, value in fields.items():
        object.__setattr__(same, name, value)
    return same


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors of a batch in order."""
    if _is_tensor(batch):
        yield batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from tensors_of(part)
    elif isinstance(batch, tuple | list):
        for part in batch:
            yield from tensors_of(part)
    elif _is_record(batch):
        yield from tensors_of(list(_fields(batch).values()))


def batch_size(batch: Any) -> int:
    """Returns the first dimension of the batch's first tensor.

    Where a list in the batch holds samples of several shapes, it is the list's length.

    Raises:
        ProgramError: The batch holds no tensor with a dimension.

    Example:
        >>> import torch
        >>> images = [torch.zeros(3, width, 8) for width in (8, 9, 10, 11)]
        >>> batch_size((torch.zeros(2, 3), torch.zeros(2)))
        2
        >>> batch_size((images, ["a", "b", "c", "d"]))
        4
    """
    if not _is_tensor(batch) and (number := _num_listed(batch)):
        return number
    for tensor in tensors_of(batch):
        if tensor.ndim:
            return int(tensor.shape[0])
    message = f"a batch must hold a tensor with a batch dimension, got {type(batch)!r}"
    raise ProgramError(message)


def _num_listed(batch: Any) -> int:
    """Returns how many samples stand in a list of the batch, one by one; 0 if none do."""
    fields = _fields(batch) if _is_record(batch) else batch
    values = list(fields.values()) if isinstance(fields, Mapping) else fields
    columns = values if isinstance(values, list | tuple) else ()
    rows = {len(column) for column in columns if _is_tensor(column) and column.ndim}
    heads = {tensor.shape[:1] for tensor in tensors_of(batch)}
    lists = [c for c in columns if isinstance(c, list | tuple)]
    # Without a tensor of their own that tells, something else must: columns are alike.
    texts = {len(c) for c in lists if next(tensors_of(c), None) is None}
    for column in (c for c in lists if not hasattr(c, "_fields")):
        shapes = {part.shape for part in column if _is_tensor(part)}
        told = rows - {n for shape in shapes for n in shape[:1]}
        if not rows:
            told = texts if len(heads) == 1 else {len(column)}
        if len(shapes) > 1 and len(column) in told:
            return len(column)
    return 0


def batch_signature(batch: Any) -> str:
    """Returns the structure, the shapes after the first dimension, and the dtypes.

    Example:
        >>> import torch
        >>> batch_signature((torch.ones(4, 3), torch.zeros(4, dtype=torch.long)))
        '(float32[*, 3], int64[*])'
    """
    if _is_tensor(batch):
        dims = ["*", *(str(n) for n in batch.shape[1:])] if batch.ndim else []
        return f"{str(batch.dtype).removeprefix('torch.')}[{', '.join(dims)}]"
    if isinstance(batch, Mapping):
        parts = (f"{key}: {batch_signature(part)}" for key, part in batch.items())
        return f"{{{', '.join(parts)}}}"
    if isinstance(batch, tuple | list):
        return f"({', '.join(batch_signature(part) for part in batch)})"
    if _is_record(batch):
        return f"{type(batch).__name__}{batch_signature(_fields(batch))}"
    return type(batch).__name__


def num_tokens(batch: Any) -> int | None:
    """Returns the values of the first integer tensor of two dimensions or more."""
    for tensor in tensors_of(batch):
        floating = tensor.is_floating_point() or tensor.is_complex()
        if tensor.ndim >= 2 and not floating:
            return int(tensor.numel())
    return None


def split_batch(batch: Any, sizes: Sequence[int]) -> list[Any]:
    """Returns consecutive parts of a batch.

    Args:
        batch: The whole.
        sizes: Samples of each part; together the size of the batch.

    Raises:
        ProgramError: The sizes do not add up to the batch.

    Example:
        >>> import torch
        >>> [part.tolist() for part in split_batch(torch.arange(3), (2, 1))]
        [[0, 1], [2]]
    """
    whole = batch_size(batch)
    if sum(sizes) != whole:
        message = f"parts of {tuple(sizes)} samples do not make up a batch of {whole}"
        raise ProgramError(message)
    return _parts(batch, whole, tuple(sizes), int(_num_listed(batch) > 0))


def _parts(batch: Any, whole: int, sizes: tuple[int, ...], level: int) -> list[Any]:
    """Splits each tensor once, and puts the structure around each part.

    Where lists hold the samples one by one, the level is 1, and 2 inside the batch.
    """
    if len(sizes) == 1:
        return [batch]
    if _is_tensor(batch):
        if batch.ndim and batch.shape[0] == whole:
            return _rows(batch, sizes)
        return [batch] * len(sizes)
    if isinstance(batch, tuple | list):
        if len(batch) == whole and (level == 2 or _holds_rows(batch, whole)):
            ends = list(itertools.accumulate(sizes))
            starts = (0, *ends)
            return [batch[i:j] for i, j in zip(starts, ends, strict=False)]
        columns = [_parts(part, whole, sizes, level and 2) for part in batch]
        rows = zip(*columns, strict=True) if columns else [()] * len(sizes)
        if hasattr(batch, "_fields"):
            return [type(batch)(*row) for row in rows]
        return [type(batch)(row) for row in rows]
    if isinstance(batch, Mapping):
        return [_like(batch, row) for row in _named_parts(batch, whole, sizes, level)]
    if _is_record(batch):
        rows_of_fields = _named_parts(_fields(batch), whole, sizes, level)
        return [_with_fields(batch, row) for row in rows_of_fields]
    return [batch] * len(sizes)


def _rows(tensor: torch.Tensor, sizes: tuple[int, ...]) -> list[torch.Tensor]:
    """Splits a tensor of any layout along its first dimension."""
    import torch

    if tensor.is_nested:
        samples = iter(tensor.unbind())
        return [
            torch.nested.as_nested_tensor(
                list(itertools.islice(samples, size)), layout=tensor.layout
            )
            for size in sizes
        ]
    if tensor.layout is torch.strided:
        return list(torch.split(tensor, list(sizes)))
    # Compressed rows cannot be cut; pairs of place and value can.
    pairs: torch.Tensor = tensor.to_sparse(layout=torch.sparse_coo)
    starts = itertools.accumulate(sizes, initial=0)
    parts = [pairs.narrow_copy(0, at, n) for at, n in zip(starts, sizes, strict=False)]
    return [part.to_sparse(layout=tensor.layout) for part in parts]


def _holds_rows(batch: Sequence[Any], whole: int) -> bool:
    divided = any(tensor.shape[:1] == (whole,) for tensor in tensors_of(batch))
    return not divided and not hasattr(batch, "_fields")


def _named_parts(
    named: Mapping[Any, Any], whole: int, sizes: tuple[int, ...], level: int
) -> list[dict[Any, Any]]:
    parts = {k: _parts(part, whole, sizes, level and 2) for k, part in named.items()}
    return [
        {key: part[index] for key, part in parts.items()} for index in range(len(sizes))
    ]


def move_batch(batch: Any, device: torch.device) -> Any:
    """Returns the batch on a device; copies from pinned memory do not block."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, non_blocking=True)

    return map_tensors(move, batch)
