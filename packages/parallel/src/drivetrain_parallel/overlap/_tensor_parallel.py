"""All-gather with a product, and a product with reduce-scatter, each overlapped."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
import torch.distributed as dist

from drivetrain_parallel.overlap._errors import OverlapError
from drivetrain_parallel.overlap._exchange import PATHS, Path, RowExchange
from drivetrain_parallel.overlap._messages import place_in
from drivetrain_parallel.overlap._products import GatherProduct, ScatterProduct
from drivetrain_parallel.overlap._rows import Rows, default_num_chunks
from drivetrain_parallel.overlap._shapes import DTYPES, Offer, agree, require_matrices

if TYPE_CHECKING:
    from collections.abc import Sequence

_GATHER, _SCATTER = "all_gather_matmul", "matmul_reduce_scatter"


def all_gather_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    bias: torch.Tensor | None = None,
    dim: int = 0,
    rows: Sequence[int] | None = None,
    num_chunks: int | None = None,
    path: Path = "direct",
    save_gathered: bool = False,
) -> torch.Tensor:
    """Returns `linear(all_gather(x), weight, bias)`; chunks are multiplied as they come.

    Each row is multiplied once, in the same chunks whatever arrives when, so equal
    input gives equal bits. The gradient of x is summed over the ranks and scattered,
    that of the weight is of this rank's weight, over all rows. Ranks call it in the
    same order, with `requires_grad` alike; one call of a group at a time.

    On CPUs messages go as the group's backend sends them (proven on Gloo). On a device
    they go in batches, as NCCL needs them, on the backend's own stream. In a compiled
    function it is a graph break, and so an error with `fullgraph=True`. A gradient of
    the gradient is an error.

    Args:
        x: This rank's rows, (..., rows, ..., K).
        weight: (N, K), as in `nn.Linear`; each rank may have its own, with its own N.
        group: The ranks; None for all.
        bias: (N,).
        dim: The dimension of the rows; any but the last. With 0 nothing is copied.
        rows: The rows of each rank. Without it ranks first tell each other their
            shapes, one small message each, for which a host waits; mismatches are
            errors then.
        num_chunks: In how many chunks a rank's rows travel; by default 512 KiB each,
            and 8 at most.
        path: "direct", from each rank to each, or "ring", from neighbour to neighbour.
        save_gathered: Whether to keep the gathered x for the weight's gradient, instead
            of gathering it again in the backward.

    Returns:
        (..., all rows, ..., N), contiguous.

    Raises:
        OverlapError: Shapes or types do not fit on this rank.
        DistributedError: They do not fit between ranks, a rank is gone, or this rank is
            not in the group.

    Example:
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> all_gather_matmul(torch.ones(3, 2), torch.ones(4, 2)).shape
        torch.Size([3, 4])
        >>> dist.destroy_process_group()
    """
    _require_counts(_GATHER, rows, num_chunks)
    x, weight, bias = _under_autocast(x, weight, bias)
    require_matrices(_GATHER, x, weight, bias)
    at = _row_dim(_GATHER, x, dim)
    flat, inner = _as_matrix(x, at)
    rank, size = place_in(group, _GATHER)
    backward = 0
    if torch.is_grad_enabled():
        gathers = weight.requires_grad and not save_gathered
        backward = int(x.requires_grad) + 2 * int(gathers)
    counts = _counts(
        _GATHER, x, at, rows, group, num_chunks, path, x.shape[-1], backward
    )
    if len(counts) == size and counts[rank] != x.shape[at]:
        message = (
            f"{_GATHER}: by rows rank {rank} of the group has {counts[rank]}, and its x "
            f"has {x.shape[at]} in dimension {at}"
        )
        raise OverlapError(message)
    plan = _plan(counts, inner, x.shape[-1] * x.element_size(), num_chunks)
    exchange = RowExchange(group, plan, path, what=_GATHER)
    apply: Any = GatherProduct.apply
    product = apply(flat, weight, bias, exchange, save_gathered)
    return _as_before(product, x, at, sum(counts))


def matmul_reduce_scatter(
    x: torch.Tensor,
    weight: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    bias: torch.Tensor | None = None,
    dim: int = 0,
    rows: Sequence[int] | None = None,
    num_chunks: int | None = None,
    path: Path = "direct",
) -> torch.Tensor:
    """Returns this rank's rows of the sum over ranks of `linear(x, weight)`, plus bias.

    Finished chunks travel while the next ones are multiplied. On the direct path terms
    are added in the order of the ranks, in float32 for 16-bit types; on the ring, in
    the order of the ring. So equal input gives equal bits. Ranks call it in the same
    order, with `requires_grad` alike; one call of a group at a time. As to devices and
    `torch.compile`, see `all_gather_matmul`.

    Args:
        x: All rows with this rank's columns, (..., rows, ..., K).
        weight: (N, K), as in `nn.Linear`: this rank's columns of it.
        group: The ranks; None for all.
        bias: (N,), added once, after the sum. Its gradient is that of this rank's rows:
            sum it over the group.
        dim: The dimension of the rows; any but the last.
        rows: How many rows each rank gets. By default all get as many, and ranks first
            tell each other their shapes, as in `all_gather_matmul`.
        num_chunks: In how many chunks a rank's rows travel; by default 512 KiB each,
            and 8 at most.
        path: "direct" or "ring".

    Returns:
        (..., rows of this rank, ..., N), contiguous.

    Raises:
        OverlapError: Shapes or types do not fit on this rank, or the rows cannot be
            divided equally.
        DistributedError: They do not fit between ranks, a rank is gone, or this rank is
            not in the group.

    Example:
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> matmul_reduce_scatter(torch.ones(3, 2), torch.ones(4, 2)).sum().item()
        24.0
        >>> dist.destroy_process_group()
    """
    _require_counts(_SCATTER, rows, num_chunks)
    x, weight, bias = _under_autocast(x, weight, bias)
    require_matrices(_SCATTER, x, weight, bias)
    at = _row_dim(_SCATTER, x, dim)
    rank, size = place_in(group, _SCATTER)
    total = x.shape[at]
    if rows is None:
        gathers = x.requires_grad or weight.requires_grad
        backward = 2 * int(gathers and torch.is_grad_enabled())
        width = weight.shape[0]
        _counts(_SCATTER, x, at, None, group, num_chunks, path, width, backward)
        if total % size:
            message = (
                f"{_SCATTER}: {total} rows cannot be divided equally between the {size} "
                "ranks of the group; say with rows= how many each gets"
            )
            raise OverlapError(message)
        rows = [total // size] * size
    elif sum(rows) != total:
        message = (
            f"{_SCATTER}: by rows there are {sum(rows)} in all, and x has {total} in "
            f"dimension {at}"
        )
        raise OverlapError(message)
    flat, inner = _as_matrix(x, at)
    row_bytes = weight.shape[0] * x.element_size()
    plan = _plan(tuple(rows), inner, row_bytes, num_chunks)
    exchange = RowExchange(group, plan, path, what=_SCATTER)
    apply: Any = ScatterProduct.apply
    product = apply(flat, weight, bias, exchange)
    return _as_before(product, x, at, rows[rank])


def _under_autocast(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Returns the tensors as autocast would hand them to a product."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return x, weight, bias
    dtype = torch.get_autocast_dtype(kind)

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        # Autocast leaves float64 alone, and what is no floating point.
        is_cast = tensor.is_floating_point() and tensor.dtype != torch.float64
        return tensor.to(dtype) if is_cast else tensor

    return cast(x), cast(weight), None if bias is None else cast(bias)


def _require_counts(
    what: str, rows: Sequence[object] | None, num_chunks: object
) -> None:
    """Raises unless rows and chunks are whole numbers, before anything is sent."""
    if num_chunks is not None and not (isinstance(num_chunks, int) and num_chunks > 0):
        message = f"{what}: num_chunks must be an int of at least 1, got {num_chunks!r}"
        raise OverlapError(message)
    if rows is not None and not all(isinstance(count, SupportsIndex) for count in rows):
        message = f"{what}: rows must be an int for each rank, got {rows!r}"
        raise OverlapError(message)


def _row_dim(what: str, x: torch.Tensor, dim: int) -> int:
    at = dim + x.dim() if dim < 0 else dim
    if not 0 <= at < x.dim() - 1:
        message = (
            f"{what}: dim must be a dimension of x other than the last, got {dim} for "
            f"a shape of {tuple(x.shape)}"
        )
        raise OverlapError(message)
    return at


def _as_matrix(x: torch.Tensor, at: int) -> tuple[torch.Tensor, int]:
    """Returns x with rows first, as a contiguous matrix, and its lines to a row."""
    first = x.movedim(at, 0)
    inner = math.prod(first.shape[1:-1])
    return first.reshape(first.shape[0] * inner, x.shape[-1]).contiguous(), inner


def _as_before(
    product: torch.Tensor, x: torch.Tensor, at: int, rows: int
) -> torch.Tensor:
    """Returns a product with its rows where those of x are."""
    shape = (rows, *x.movedim(at, 0).shape[1:-1], product.shape[-1])
    return product.view(shape).movedim(0, at).contiguous()


def _counts(
    what: str,
    x: torch.Tensor,
    at: int,
    rows: Sequence[int] | None,
    group: dist.ProcessGroup | None,
    num_chunks: int | None,
    path: str,
    columns: int,
    backward: int,
) -> tuple[int, ...]:
    """Returns the rows of each rank: as given, or as the ranks tell each other."""
    if path not in PATHS:
        message = f"{what}: path must be one of {', '.join(PATHS)}, got {path!r}"
        raise OverlapError(message)
    place_in(group, what)
    if rows is not None:
        return tuple(rows)
    others = [size for d, size in enumerate(x.shape[:-1]) if d != at]
    offer = Offer(
        operation=int(what == _SCATTER),
        path=PATHS.index(path),
        num_chunks=num_chunks or 0,
        dtype=DTYPES.index(x.dtype),
        backward=backward,
        rows=x.shape[at],
        row_vectors=math.prod(others),
        columns=columns,
    )
    return agree(group, offer, x.device, what)


def _plan(
    counts: tuple[int, ...], inner: int, row_bytes: int, num_chunks: int | None
) -> Rows:
    lines = tuple(count * inner for count in counts)
    chunks = num_chunks
    if chunks is None:
        chunks = default_num_chunks(max(lines, default=0) * row_bytes)
    return Rows(counts=lines, num_chunks=chunks)
