"""What a launch of a Triton kernel needs on the device: the table, chunks, numbers."""

from __future__ import annotations

import functools
import importlib
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from drivetrain_core.accelerators import accelerator_of
from drivetrain_optim.fused._table import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from drivetrain_optim.batched._scalars import Number
    from drivetrain_optim.batched._work import Work
    from drivetrain_optim.fused._table import Table

# A thread of 128 holds four elements of each tensor, sixteen bytes of float32: with
# eight, Triton 3.6 takes 238 registers for AGD on sm_90 instead of 62, and too few
# threads are in flight. The blocks of a chunk share one look-up of addresses.
_BLOCK = 512
_NUM_BLOCKS = 8
_NUM_WARPS = 4
_CHUNK_NUMEL = _BLOCK * _NUM_BLOCKS
# A step of LAMB that clips gradients launches three kernels on the table.
_CAPTURED_UPLOADS = 3
_NUMEL = COLUMNS.index("numel")

_launchers: weakref.WeakKeyDictionary[Table, Launcher] = weakref.WeakKeyDictionary()


@functools.cache
def _kernels() -> Any:
    """Returns the module of the kernels, which needs triton."""
    return importlib.import_module("drivetrain_optim.fused._triton_kernels")


def launcher(work: Work) -> Launcher:
    """Returns what launches kernels on a batch; kept as long as its table is."""
    assert work.table is not None
    found = _launchers.get(work.table)
    if found is None:
        found = Launcher(work)
        # What a capture copies to the device is there only once the graph is replayed.
        if not is_capturing(found.device):
            _launchers[work.table] = found
    return found


def is_capturing(device: torch.device) -> bool:
    """Returns whether a CUDA graph is being captured."""
    return device.type != "cpu" and accelerator_of(device).is_capturing()


def split(numels: ArrayLike) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Returns the chunks of all rows, and which is the first one of each row.

    Args:
        numels: The number of elements of each row.

    Returns:
        The row of each chunk and its number in it, shape (num_chunks, 2); and the first
        chunk of each row with the number of all chunks at the end.

    Example:
        >>> chunks, first_chunks = split([1, 0, 5000])
        >>> chunks.tolist(), first_chunks.tolist()
        ([[0, 0], [2, 0], [2, 1]], [0, 1, 1, 3])
    """
    counts = -(np.asarray(numels, dtype=np.int64) // -_CHUNK_NUMEL)
    first_chunks = np.concatenate([[0], np.cumsum(counts)])
    rows = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(len(rows)) - first_chunks[rows]
    chunks = np.stack([rows, places], axis=1)
    return chunks.astype(np.int32), first_chunks.astype(np.int32)


class Launcher:
    """Launches kernels on the rows of one pointer table.

    The table is copied to the device when it has changed. A launch inside a graph
    capture reads a copy of its own, which every replay fetches from host memory that
    nobody writes again; both live as long as the first parameter of the batch.

    Not thread-safe, like the optimizer that it belongs to.

    Args:
        work: A step of the batch.
    """

    def __init__(self, work: Work) -> None:
        """Splits the rows into chunks and copies those to the device."""
        kind, rows = work.batch.kind, work.rows
        dtypes = _kernels().DTYPES
        self.device = kind.device
        self.constants = {
            "WEIGHT": dtypes[kind.dtypes[0]],
            "MOMENT": dtypes[kind.dtypes[2]],
            "MASTER": kind.master,
            "ACC": dtypes[kind.dtype],
        }
        self.grad = dtypes[kind.dtypes[1]]
        self._is_double = kind.dtype is torch.float64
        self._sent = np.empty((0, 0), dtype=np.int64)
        self._table: Tensor | None = None
        self._num_spares = 0
        if kind.step is None and self.device.type != "cpu":
            self._num_spares = _CAPTURED_UPLOADS
        self._spares: list[Tensor] = []
        chunks, first_chunks = split(rows[:, _NUMEL])
        self.num_rows, self.num_chunks = len(rows), len(chunks)
        self._chunks: Tensor = self._upload(chunks, work)
        self._first_chunks: Tensor = self._upload(first_chunks, work)

    def launch(
        self, name: str, work: Work, arguments: Sequence[Any], **constants: Any
    ) -> None:
        """Launches one program for each chunk.

        Args:
            name: The name of the kernel.
            work: The step, whose table points to its gradients.
            arguments: What follows the table and the chunks.
            **constants: The constants of the kernel but its sizes.
        """
        if self.num_chunks:
            arguments = [self._on_device(work), self._chunks, *arguments]
            sizes = {"BLOCK": _BLOCK, "NUM_BLOCKS": _NUM_BLOCKS}
            self._run(name, (self.num_chunks,), arguments, constants | sizes)

    def partials(self, width: int, dtype: torch.dtype) -> Tensor:
        """Returns room for what each chunk sums up, shape (num_chunks, width)."""
        return torch.empty((self.num_chunks, width), dtype=dtype, device=self.device)

    def row_sums(self, partials: Tensor) -> Tensor:
        """Returns the sums over the chunks of each row, float64, (num_rows, width)."""
        width = partials.shape[1]
        if not self.num_chunks:
            return partials.new_zeros((self.num_rows, width), dtype=torch.float64)
        sums = partials.new_empty((self.num_rows, width), dtype=torch.float64)
        arguments = [partials, self._first_chunks, sums]
        constants = {"WIDTH": width, "BLOCK": _BLOCK}
        self._run("sum_chunks_kernel", (self.num_rows, width), arguments, constants)
        return sums

    def numbers(self, values: Sequence[Number]) -> tuple[list[Any], dict[str, int]]:
        """Returns numbers as a kernel takes them, and the constants that say how.

        Args:
            values: Floats, and tensors of one element or of one element a row.
        """
        arguments: list[Any] = []
        on_device = per_row = 0
        for place, value in enumerate(values):
            is_there = isinstance(value, torch.Tensor) and value.device == self.device
            argument: Any = value if is_there else float(value)
            if self._is_double and not is_there:
                # Triton takes a float as float32.
                argument = torch.full(
                    (), argument, dtype=torch.float64, device=self.device
                )
            if isinstance(argument, torch.Tensor):
                on_device |= 1 << place
                per_row |= (argument.numel() > 1) << place
            arguments.append(argument)
        return arguments, {"ON_DEVICE": on_device, "PER_ROW": per_row}

    def _run(
        self,
        name: str,
        grid: tuple[int, ...],
        arguments: Sequence[Any],
        constants: dict[str, Any],
    ) -> None:
        kernel = getattr(_kernels(), name)[grid]
        options = {"num_warps": _NUM_WARPS, "enable_fp_fusion": True}
        index = None if self.device.type == "cpu" else self.device.index
        # With None, it is launched where it would be without.
        with torch.accelerator.device_index(index):
            kernel(*arguments, **constants, **options)

    def _on_device(self, work: Work) -> Tensor:
        """Returns the table on the device, as it is now on the host."""
        rows = work.rows
        if is_capturing(self.device):
            table = self._upload(rows, work)
            self._keep(work, table, self._chunks, self._first_chunks)
            return table
        while len(self._spares) < self._num_spares:
            self._spares.append(torch.from_numpy(rows).pin_memory())
        if self._table is None or not np.array_equal(rows, self._sent):
            self._sent = rows.copy()
            self._table = self._upload(rows, work)
        return self._table

    def _upload(self, array: NDArray[Any], work: Work) -> Tensor:
        """Returns a copy on the device, without waiting for it."""
        host = torch.from_numpy(array.copy())
        if is_capturing(self.device):
            # Page-locked memory cannot be had now.
            if self._spares and self._spares[-1].shape == host.shape:
                host = self._spares.pop().copy_(host)
            self._keep(work, host)
        elif self.device.type != "cpu":
            # torch gives the memory to others only once the copy is done.
            host = host.pin_memory()
        return host.to(self.device, non_blocking=True)

    def _keep(self, work: Work, *tensors: Tensor) -> None:
        """Keeps what a captured graph reads as long as a parameter of the batch."""
        kept = list(tensors)
        # Not before: torch swaps no tensor that has a weak reference.
        weakref.finalize(work.batch.params[0], kept.clear).atexit = False
