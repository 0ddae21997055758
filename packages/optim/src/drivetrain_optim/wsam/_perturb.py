"""Arithmetic of WSAM on lists of local tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from drivetrain_optim.batched._batch import batch_limit, split_by_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    Scalar = Tensor | float
    _Tensors = list[Tensor] | tuple[Tensor, ...]


class Rounding:
    """Rounds to a narrower dtype up or down at random, so that the mean is right.

    A perturbation or a sharpness term is often smaller than half the distance of a
    bf16 weight to its neighbour; rounding to the nearest would lose it. Random bits
    come from generators of its own: the same seed gives the same bits on every
    replica and after a restart, and torch's global generators are left alone.

    Args:
        seed: The seed.

    Example:
        >>> value = 1 + 2**-9  # a quarter of the way between neighbours in bf16
        >>> out = torch.empty(4096, dtype=torch.bfloat16)
        >>> Rounding(0).store([out], [torch.full((4096,), value)])
        >>> sorted(out.unique().tolist())
        [1.0, 1.0078125]
        >>> bool((out.double().mean() - value).abs() < 2e-4)
        True
    """

    def __init__(self, seed: int) -> None:
        """Makes no generator yet."""
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def store(self, targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Writes rounded values, in place.

        Args:
            targets: Tensors of one 16-bit dtype on one device.
            values: What is written, wider.
        """
        flat = torch.cat([value.reshape(-1) for value in values])
        rounded = self._rounded(flat, targets[0].dtype)
        pieces = torch.split(rounded, [target.numel() for target in targets])
        shaped = [p.view(t.shape) for p, t in zip(pieces, targets, strict=True)]
        torch._foreach_copy_(list(targets), shaped)

    def _rounded(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        near = values.to(dtype)
        error = values - near
        # The bits of a float are ordered by magnitude, so its neighbours are one away.
        # Comparisons with NaN are false: infinities and NaN are kept.
        outward = torch.signbit(error) == torch.signbit(near)
        bits = near.view(torch.int16)
        other = torch.where(outward, bits + 1, bits - 1).view(dtype)
        share = error / (other.to(values.dtype) - near)
        # In float32 whatever the default dtype is: a short draw is rarely below a share.
        draw = torch.empty_like(values, dtype=torch.float32)
        draw.uniform_(generator=self._generator(values.device))
        return torch.where(draw < share, other, near)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            # Mixed, since models and data are drawn with small seeds, and draws from
            # the same seed go together: at seed 0 a third of the radius was lost.
            # CPU generators take 32 bits.
            mixed = (self._seed + 1) * 0x9E3779B1 & 0xFFFFFFFF
            self._generators[device] = torch.Generator(device).manual_seed(mixed)
        return self._generators[device]


def norms_squared(
    tensors: Sequence[Tensor], scaled_by: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Returns the squared norm of each tensor, at least in float32.

    Args:
        tensors: The tensors.
        scaled_by: What each is multiplied with before, or None.
    """
    results = list(tensors)
    columns = [tensors] if scaled_by is None else [tensors, scaled_by]
    for part in _parts(*columns):
        values: _Tensors = _take(tensors, part)
        if scaled_by is not None:
            wide = _wide(_take(tensors, part))
            values = torch._foreach_mul(wide, _like(_take(scaled_by, part), wide))
        dtype = torch.promote_types(values[0].dtype, torch.float32)
        norms = torch._foreach_norm(values, 2, dtype=dtype)
        _put(results, part, torch._foreach_mul(norms, norms))
    return results


def dots(left: Sequence[Tensor], right: Sequence[Tensor]) -> list[Tensor]:
    """Returns the scalar product of each pair, at least in float32."""
    results = list(left)
    for part in _parts(left, right):
        wide = _wide(_take(left, part))
        products = torch._foreach_mul(wide, _like(_take(right, part), wide))
        _put(results, part, [product.sum() for product in products])
    return results


def sums(
    columns: Sequence[Sequence[Tensor]],
    *,
    owners: Sequence[Tensor],
    among: Iterable[Tensor],
) -> Tensor:
    """Returns the sum of each column over all parameters and all of their shards.

    Communicates once for each dimension of a device mesh that holds shards, whatever
    the number of parameters; not at all without DTensor. Every rank of a mesh must call it.

    Args:
        columns: Lists of scalars, one for the local part of each owner.
        owners: The parameters that the scalars belong to. What all ranks of a mesh
            dimension hold alike counts once.
        among: All parameters of the optimizer, from which ranks without a single owner
            learn what they take part in.

    Returns:
        As many elements as there are columns.
    """
    dtype, device = torch.float32, torch.device("cpu")
    split: dict[Any, set[int]] = {}  # by mesh, the dimensions that hold shards
    for param in among:
        dtype = torch.promote_types(dtype, param.dtype)
        device = param.device if device.type == "cpu" else device
        split.setdefault(getattr(param, "device_mesh", None), set()).update(
            dim for dim, sharded in enumerate(_sharded_over(param)) if sharded
        )
    alike: dict[tuple[Any, int, torch.device], list[int]] = {}
    for index, owner in enumerate(owners):
        mesh: Any = getattr(owner, "device_mesh", None)
        over = _sharded_over(owner)
        copies = math.prod(mesh.size(dim) for dim in split[mesh] if not over[dim])
        alike.setdefault((mesh, copies, owner.device), []).append(index)
    totals = {
        mesh: torch.zeros(len(columns), dtype=dtype, device=device) for mesh in split
    }
    for (mesh, copies, _), indices in alike.items():
        rows = [torch.stack(_take(column, indices)) for column in columns]
        part = torch.stack([row.sum(dtype=dtype) for row in rows])
        totals[mesh] += part.to(device) / copies
    for mesh, dims in split.items():
        for dim in sorted(dims):
            dist.all_reduce(totals[mesh], group=mesh.get_group(dim))
    return torch.stack(list(totals.values())).sum(0)


def clip_factor(norm_squared: Tensor, max_norm: float | None) -> Tensor | None:
    """Returns what brings a gradient of this norm within the bound; None for no bound.

    Example:
        >>> clip_factor(torch.tensor(16.0), 1.0)
        tensor(0.2500)
    """
    if max_norm is None:
        return None
    return torch.clamp(max_norm / (norm_squared.sqrt() + 1e-6), max=1.0)


def perturb_(
    weights: Sequence[Tensor],
    grads: Sequence[Tensor],
    *,
    by: Tensor,
    adaptive: bool,
    rounding: Rounding,
) -> None:
    """Adds `by * g` to each weight, or `by * w^2 * g`.

    Args:
        weights: The weights, changed in place.
        grads: The gradients.
        by: The factor, a scalar tensor.
        adaptive: Whether the squared weights are a factor too.
        rounding: Rounds weights that are narrower than float32.
    """
    for part in _parts(weights, grads):
        targets = _take(weights, part)
        wide = _wide(targets)
        moves = torch._foreach_mul(_like(_take(grads, part), wide), _at(by, wide))
        if adaptive:
            torch._foreach_mul_(moves, wide)
            torch._foreach_mul_(moves, wide)
        _add(targets, wide, moves, rounding)


def descend_(
    weights: Sequence[Tensor],
    masters: Sequence[Tensor | None],
    firsts: Sequence[Tensor] | None,
    seconds: Sequence[Tensor],
    *,
    by: Scalar,
    clip: Tensor | None,
    rounding: Rounding,
) -> None:
    """Subtracts `by * (clip * second - first)` from each weight.

    Args:
        weights: The weights, changed in place.
        masters: The float32 copy of each weight, or None. Where there is one it is
            moved, and rounded into the weight to the nearest.
        firsts: The first gradients; None for zeros.
        seconds: The second gradients, or directions.
        by: The factor, a number or a scalar tensor.
        clip: A factor of the second gradients; None for 1.
        rounding: Rounds weights that are narrower than float32 and have no master.
    """
    targets = [
        weight if master is None else master
        for weight, master in zip(weights, masters, strict=True)
    ]
    columns = [targets, weights, seconds, *([] if firsts is None else [firsts])]
    for part in _parts(*columns):
        into, out = _take(targets, part), _take(weights, part)
        wide = _wide(into)
        ends: _Tensors = _like(_take(seconds, part), wide)
        if clip is not None:
            ends = torch._foreach_mul(ends, _at(clip, wide))
        moves: _Tensors
        if firsts is None:
            moves = torch._foreach_mul(ends, _at(by, wide))
        else:
            moves = torch._foreach_sub(ends, _like(_take(firsts, part), wide))
            torch._foreach_mul_(moves, _at(by, wide))
        _add(into, wide, moves, rounding, sign=-1)
        if out[0] is not into[0]:
            torch._foreach_copy_(out, into)


def combine_(
    out: Sequence[Tensor],
    firsts: Sequence[Tensor],
    seconds: Sequence[Tensor],
    *,
    weight: float,
    clip: Tensor | None,
) -> None:
    """Writes `first + weight * (clip * second - first)`, rounded once.

    Args:
        out: Where it is written; may be `firsts`.
        firsts: The first gradients.
        seconds: The second gradients.
        weight: The factor of the difference; at 1 the result is the second, exactly.
        clip: A factor of the second gradients; None for 1.
    """
    for part in _parts(out, firsts, seconds):
        wide = _wide(_take(firsts, part))
        ends = torch._foreach_mul(_like(_take(seconds, part), wide), _at(clip, wide))
        moved = torch._foreach_lerp(wide, ends, weight)
        torch._foreach_copy_(_take(out, part), moved)


def add_into_(
    out: Sequence[Tensor],
    grads: Sequence[Tensor],
    directions: Sequence[Tensor] | None,
    *,
    clip: Tensor | None,
    by: Tensor | None,
) -> None:
    """Writes `clip * grad + by * direction`, rounded once.

    Args:
        out: Where it is written; may be `grads`.
        grads: The gradients.
        directions: The directions; None for zeros.
        clip: The factor of the gradients; None for 1.
        by: The factor of the directions; None for 1.
    """
    columns = [out, grads, *([] if directions is None else [directions])]
    for part in _parts(*columns):
        wide = _wide(_take(grads, part))
        values = torch._foreach_mul(wide, _at(clip, wide))
        if directions is not None:
            moves = _like(_take(directions, part), wide)
            torch._foreach_add_(values, torch._foreach_mul(moves, _at(by, wide)))
        torch._foreach_copy_(_take(out, part), values)


def _add(
    into: list[Tensor],
    wide: list[Tensor],
    moves: _Tensors,
    rounding: Rounding,
    sign: int = 1,
) -> None:
    if wide[0] is into[0]:
        torch._foreach_add_(into, moves, alpha=sign)
    else:
        rounding.store(into, torch._foreach_add(wide, moves, alpha=sign))


def _sharded_over(param: Any) -> list[bool]:
    """Returns for each dimension of a parameter's mesh whether ranks differ there."""
    return [not p.is_replicate() for p in getattr(param, "placements", ())]


def _parts(*columns: Sequence[Tensor]) -> Iterator[list[int]]:
    """Yields the indices of rows that multi-tensor operations can take at once."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for index, row in enumerate(zip(*columns, strict=True)):
        # Whether the first two are one tensor tells weights from masters.
        kind = (row[0].device, row[0] is row[1 % len(row)], *(t.dtype for t in row))
        alike.setdefault(kind, []).append(index)
    for indices in alike.values():
        tensors = _take(columns[0], indices)
        sizes = [tensor.numel() for tensor in tensors]
        yield from split_by_size(indices, sizes, batch_limit(tensors[0].device))


def _take(column: Sequence[Tensor], part: list[int]) -> list[Tensor]:
    return [column[index] for index in part]


def _put(column: list[Tensor], part: list[int], values: Sequence[Tensor]) -> None:
    for index, value in zip(part, values, strict=True):
        column[index] = value


def _wide(tensors: list[Tensor]) -> list[Tensor]:
    """Returns tensors of one dtype in the dtype of arithmetic, copied if it differs."""
    dtype = torch.promote_types(tensors[0].dtype, torch.float32)
    return tensors if tensors[0].dtype is dtype else [t.to(dtype) for t in tensors]


def _like(tensors: list[Tensor], wide: list[Tensor]) -> list[Tensor]:
    dtype = wide[0].dtype
    return tensors if tensors[0].dtype is dtype else [t.to(dtype) for t in tensors]


def _at(scalar: Scalar | None, wide: list[Tensor]) -> Scalar:
    """Returns a factor where the tensors are; a number needs no place."""
    if scalar is None:
        return 1.0
    if not isinstance(scalar, torch.Tensor):
        return scalar
    return scalar.to(device=wide[0].device, dtype=wide[0].dtype)
