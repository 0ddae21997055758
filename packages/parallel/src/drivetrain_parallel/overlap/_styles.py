"""Parallel styles whose all-gathers and reduce-scatters run under their products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from drivetrain_parallel.overlap._errors import OverlapError
from drivetrain_parallel.overlap._exchange import PATHS, Path
from drivetrain_parallel.overlap._rows import chunked_rows
from drivetrain_parallel.overlap._tensor_parallel import (
    all_gather_matmul,
    matmul_reduce_scatter,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class OverlappedColwiseParallel(ColwiseParallel):
    """`ColwiseParallel(input_layouts=Shard(sequence_dim))`, overlapped.

    The input is sharded on the sequence, as `SequenceParallel` leaves it. It is
    gathered in chunks that are multiplied as they come; see `all_gather_matmul`.
    Parameters become the same DTensors as with torch's style, so state dicts are the
    same. `torch.compile` leaves the layer as it is, a graph break around it.

    A plain tensor is taken for one block of equal ones, as by torch's styles; where
    blocks are uneven, hand on DTensors (`use_local_output=False`).

    Args:
        sequence_dim: The dimension of the input that is sharded.
        use_local_output: Whether the output is a tensor, sharded on its last dimension,
            and not a DTensor.
        num_chunks: In how many chunks a rank's rows travel; by default as many as the
            sizes suggest.
        path: "direct" or "ring".
        save_gathered: Whether to keep the gathered input for the backward.

    Raises:
        OverlapError: The path is unknown; the module is no plain `nn.Linear`, or the
            mesh has more than one dimension.

    Example:
        >>> style = OverlappedColwiseParallel(sequence_dim=1)
        >>> style.input_layouts
        (Shard(dim=1),)
    """

    def __init__(
        self,
        *,
        sequence_dim: int = 1,
        use_local_output: bool = True,
        num_chunks: int | None = None,
        path: Path = "direct",
        save_gathered: bool = False,
    ) -> None:
        """Keeps what the forward needs."""
        _require_path(path)
        super().__init__(
            input_layouts=Shard(sequence_dim), use_local_output=use_local_output
        )
        self._sequence_dim = sequence_dim
        self._num_chunks = num_chunks
        self._path: Path = path
        self._save_gathered = save_gathered

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _require_linear(module, device_mesh, type(self).__name__)
        self._partition_linear_fn("", module, device_mesh)  # type: ignore[no-untyped-call]
        return _replace_forward(module, device_mesh, self)

    def _forward(
        self, module: nn.Linear, mesh: DeviceMesh, given: torch.Tensor
    ) -> torch.Tensor:
        dim = _positive(self._sequence_dim, given)
        x = _laid_out(given, mesh, Shard(dim))
        product = all_gather_matmul(
            x.to_local(grad_placements=[Shard(dim)]),
            _local(module.weight),
            mesh.get_group(),
            bias=_local_if_any(module.bias),
            rows=chunked_rows(x.shape[dim], mesh.size()),
            save_gathered=self._save_gathered,
            dim=dim,
            num_chunks=self._num_chunks,
            path=self._path,
        )
        if self.use_local_output:
            return product
        shape = torch.Size((*x.shape[:-1], module.weight.shape[0]))
        return _as_dtensor(product, mesh, Shard(len(shape) - 1), shape)


class OverlappedRowwiseParallel(RowwiseParallel):
    """`RowwiseParallel(output_layouts=Shard(sequence_dim))`, overlapped.

    The input is sharded on its last dimension, as `OverlappedColwiseParallel` leaves
    it. Chunks of the product are summed over the ranks while the next ones are
    multiplied, and the output is sharded on the sequence; see `matmul_reduce_scatter`.
    Parameters become the same DTensors as with torch's style, so state dicts are the
    same.

    Args:
        sequence_dim: The dimension of the output that is sharded.
        use_local_output: Whether the output is a tensor, and not a DTensor.
        num_chunks: In how many chunks a rank's rows travel; by default as many as the
            sizes suggest.
        path: "direct" or "ring".

    Raises:
        OverlapError: As for `OverlappedColwiseParallel`.

    Example:
        >>> OverlappedRowwiseParallel(sequence_dim=1).output_layouts
        (Shard(dim=1),)
    """

    def __init__(
        self,
        *,
        sequence_dim: int = 1,
        use_local_output: bool = True,
        num_chunks: int | None = None,
        path: Path = "direct",
    ) -> None:
        """Keeps what the forward needs."""
        _require_path(path)
        super().__init__(
            output_layouts=Shard(sequence_dim), use_local_output=use_local_output
        )
        self._sequence_dim = sequence_dim
        self._num_chunks = num_chunks
        self._path: Path = path

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _require_linear(module, device_mesh, type(self).__name__)
        self._partition_linear_fn("", module, device_mesh)  # type: ignore[no-untyped-call]
        return _replace_forward(module, device_mesh, self)

    def _forward(
        self, module: nn.Linear, mesh: DeviceMesh, given: torch.Tensor
    ) -> torch.Tensor:
        x = _laid_out(given, mesh, Shard(given.dim() - 1))
        dim = _positive(self._sequence_dim, x)
        # Each rank adds it to its rows only, so its gradients are summed over ranks.
        bias = _summed_local(module.bias)
        product = matmul_reduce_scatter(
            x.to_local(grad_placements=[Shard(x.dim() - 1)]),
            _local(module.weight),
            mesh.get_group(),
            bias=bias,
            rows=chunked_rows(x.shape[dim], mesh.size()),
            dim=dim,
            num_chunks=self._num_chunks,
            path=self._path,
        )
        if self.use_local_output:
            return product
        shape = torch.Size((*x.shape[:-1], module.weight.shape[0]))
        return _as_dtensor(product, mesh, Shard(dim), shape)


class _OverlappedLinear(nn.Linear):
    """A linear layer that a style computes; a module becomes one by its class.

    A compiled model breaks its graph here: what is around it is compiled.
    """

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what the style makes of the input."""
        overlapped_by: Any = self._overlapped_by
        style, mesh = overlapped_by
        return style._forward(self, mesh, x)  # type: ignore[no-any-return]


def _replace_forward(module: nn.Module, mesh: DeviceMesh, style: Any) -> nn.Module:
    replaced: Any = module
    replaced._overlapped_by = (style, mesh)
    # As FSDP2 does; the module, its hooks and its names stay.
    replaced.__class__ = _OverlappedLinear
    return module


def _require_path(path: Path) -> None:
    if path not in PATHS:
        message = f"path must be one of {', '.join(PATHS)}, got {path!r}"
        raise OverlapError(message)


def _require_linear(module: nn.Module, mesh: DeviceMesh, style: str) -> None:
    if type(module) is not nn.Linear:
        message = (
            f"{style} is for torch.nn.Linear itself, whose product is split, got "
            f"{type(module).__name__}; use the style of torch for it"
        )
        raise OverlapError(message)
    if mesh.ndim != 1:
        message = (
            f"{style} needs a mesh of one dimension, got {mesh.ndim}; pass the part for "
            "tensor parallel, such as mesh['tp']"
        )
        raise OverlapError(message)


def _laid_out(given: torch.Tensor, mesh: DeviceMesh, layout: Shard) -> DTensor:
    """Returns the input as a DTensor of a layout, as torch's styles take it."""
    if not isinstance(given, DTensor):
        return DTensor.from_local(given, mesh, [layout], run_check=False)
    return given.redistribute(mesh, [layout])


def _positive(dim: int, x: torch.Tensor) -> int:
    return dim + x.dim() if dim < 0 else dim


def _local(parameter: torch.Tensor) -> torch.Tensor:
    assert isinstance(parameter, DTensor)
    return parameter.to_local()


def _local_if_any(parameter: torch.Tensor | None) -> torch.Tensor | None:
    return None if parameter is None else _local(parameter)


def _summed_local(parameter: torch.Tensor | None) -> torch.Tensor | None:
    if parameter is None:
        return None
    assert isinstance(parameter, DTensor)
    # Redistributed to what it is already: its backward sums the partial gradients.
    same = parameter.redistribute(placements=[Replicate()])
    return same.to_local(grad_placements=[Partial()])


def _as_dtensor(
    product: torch.Tensor, mesh: DeviceMesh, placement: Shard, shape: torch.Size
) -> DTensor:
    """Returns a DTensor of a product; blocks may be uneven, so the shape is told."""
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        product, mesh, [placement], run_check=False, shape=shape, stride=stride
    )
