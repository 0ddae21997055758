"""Writes what was read into tensors; into those of a GPU by way of page-locked memory."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import torch

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._devices import can_overlap
from drivetrain_checkpoint._layout.partition import DTYPES

if TYPE_CHECKING:
    from torch import Tensor

    from drivetrain_checkpoint._restore.read_plan import BlockCopy

_PIECE_BYTES = 32 << 20


class BlockWriter:
    """Writes rows of blocks in place.

    The driver copies to a GPU from any other memory by way of page-locked memory of its
    own, with one thread. Here two pieces take turns: several threads fill one while the
    other one is on its way, and more is read meanwhile.

    Args:
        num_threads: How many threads copy on this machine.
    """

    def __init__(self, num_threads: int) -> None:
        """Takes no memory yet."""
        self._num_threads = num_threads
        self._pieces: dict[torch.device, list[_Piece]] = {}

    def write(self, copy: BlockCopy, data: memoryview, target: Tensor) -> None:
        """Writes rows of a block; what goes to a GPU is there after `end`.

        Args:
            copy: The rows.
            data: What was read, from the first row on; it may be changed afterwards.
            target: The wanted block.
        """
        raw = torch.frombuffer(data[: copy.size_bytes], dtype=torch.uint8)
        rows = raw.view(DTYPES[copy.dtype]).view(copy.shape)[copy.theirs]
        with torch.no_grad():
            block = target[copy.ours]
            if can_overlap(block.device) and _are_same_bytes(rows, block):
                self._send(_bytes_of(rows), _bytes_of(block))
            else:
                block.copy_(rows)

    def end(self) -> None:
        """Waits until all is written."""
        for pieces in self._pieces.values():
            for piece in pieces:
                piece.wait()

    def _send(self, source: Tensor, target: Tensor) -> None:
        pieces = self._pieces.setdefault(target.device, [])
        for at in range(0, source.numel(), _PIECE_BYTES):
            part = source[at : at + _PIECE_BYTES]
            if len(pieces) < 2:
                pieces.append(_Piece())
            else:
                pieces.append(pieces.pop(0))
            pieces[-1].send(part, target[at : at + _PIECE_BYTES], self._num_threads)


class _Piece:
    """Page-locked memory, and whether it is still being copied."""

    def __init__(self) -> None:
        self._memory = _page_locked(_PIECE_BYTES)
        self._copied: torch.Event | None = None

    def send(self, source: Tensor, target: Tensor, num_threads: int) -> None:
        """Fills the memory once it is free, and begins to copy it to a device."""
        self.wait()
        size = source.numel()
        begin, end = (
            array("Q", [source.data_ptr()]),
            array("Q", [self._memory.data_ptr()]),
        )
        _native.copy(begin, end, array("Q", [size]), num_threads)
        _begin_copy(target, self._memory[:size])
        self._copied = _event(target.device)

    def wait(self) -> None:
        """Waits until what was sent has arrived."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None


def _are_same_bytes(rows: Tensor, block: Tensor) -> bool:
    """Whether the bytes of both, in order, are the values of both."""
    is_lazy = block.is_conj() or block.is_neg()
    are_runs = rows.is_contiguous() and block.is_contiguous()
    return rows.dtype == block.dtype and are_runs and not is_lazy


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def _page_locked(size_bytes: int) -> Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)


def _event(device: torch.device) -> torch.Event:
    """Returns when all that is queued on a device now is done."""
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return event


def _begin_copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)
