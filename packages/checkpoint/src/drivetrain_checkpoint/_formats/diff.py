"""Differences of two checkpoints of any format."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from drivetrain_checkpoint._formats.source import bytes_of, read_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drivetrain_checkpoint._formats.source import TensorSource


class Difference(NamedTuple):
    """Something that two checkpoints do not have in common.

    Args:
        name: The tensor, or the value.
        because: How it differs.
        max_abs: The largest difference of two elements; None where there is none.
    """

    name: str
    because: str
    max_abs: float | None = None


def differences(
    one: TensorSource,
    two: TensorSource,
    progress: Callable[[int, int], object] | None = None,
) -> Iterator[Difference]:
    """Yields how two checkpoints differ; one tensor of each is in memory at a time.

    NaN is equal to NaN, and 0 to -0.

    Args:
        one: A checkpoint.
        two: Another.
        progress: Called with the tensors that were compared and those that there are.

    Raises:
        CheckpointError: One of them is damaged.
    """
    names = list(dict.fromkeys([*one.tensors, *two.tensors]))
    for number, name in enumerate(names, 1):
        found = _compare(name, one, two)
        if found is not None:
            yield found
        if progress is not None:
            progress(number, len(names))
    ours, theirs = one.values(), two.values()
    for name in dict.fromkeys([*ours, *theirs]):
        if name not in theirs or name not in ours:
            where = one.where if name in ours else two.where
            yield Difference(name, f"only in {where}")
        elif repr(ours[name]) != repr(theirs[name]):
            yield Difference(name, f"{ours[name]!r:.60} and {theirs[name]!r:.60}")


def _compare(name: str, one: TensorSource, two: TensorSource) -> Difference | None:
    if name not in one.tensors or name not in two.tensors:
        where = one.where if name in one.tensors else two.where
        return Difference(name, f"only in {where}")
    ours, theirs = one.tensors[name], two.tensors[name]
    if (ours.global_shape, ours.dtype) != (theirs.global_shape, theirs.dtype):
        return Difference(
            name,
            f"{list(ours.global_shape)} {ours.dtype} and "
            f"{list(theirs.global_shape)} {theirs.dtype}",
        )
    a, b = read_tensor(one, name), read_tensor(two, name)
    if torch.equal(bytes_of(a), bytes_of(b)):
        return None
    wide = torch.complex128 if ours.dtype.is_complex else torch.float64
    differs = (a != b) & ~((a != a) & (b != b))  # noqa: PLR0124
    count = int(differs.sum())
    if not count:
        return None
    gap = (a[differs].to(wide) - b[differs].to(wide)).abs().max().item()
    return Difference(
        name, f"{count:,} of {a.numel():,} elements differ, by up to {gap:.6g}", gap
    )
