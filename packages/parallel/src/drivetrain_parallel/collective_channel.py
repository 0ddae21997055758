"""Collective channel of the ranks along one axis: the same code on ranks and threads.

`GroupChannel` goes through a process group. `rehearse` runs a function once for each
rank in threads of this process, so that a plan is proven before any rank starts.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup

_Result = TypeVar("_Result")


class CollectiveChannel(Protocol):
    """Collectives of one axis, without gradients.

    Attributes:
        rank: Where this rank lies along the axis.
        size: How many ranks there are.
    """

    rank: int
    size: int

    def all_to_all(
        self, parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]
    ) -> list[Tensor]:
        """Sends the i-th part to rank i, and returns what each rank sent here.

        Args:
            parts: One tensor for each rank.
            shapes: The shape of what comes from each rank.
        """
        ...

    def all_gather(
        self, tensor: Tensor, shapes: Sequence[tuple[int, ...]]
    ) -> list[Tensor]:
        """Returns the tensors of all ranks.

        Args:
            tensor: That of this rank.
            shapes: The shape of each rank's.
        """
        ...


class GroupChannel:
    """Goes through a process group.

    Args:
        group: That of the axis.
    """

    def __init__(self, group: ProcessGroup) -> None:
        """Keeps the group."""
        self._group = group
        self.rank = torch.distributed.get_rank(group)
        self.size = torch.distributed.get_world_size(group)

    def all_to_all(
        self, parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]
    ) -> list[Tensor]:
        """Sends and receives as one flat tensor: every backend knows that."""
        sent = torch.cat([part.reshape(-1) for part in parts])
        sizes = [torch.Size(shape).numel() for shape in shapes]
        received = sent.new_empty(sum(sizes))
        torch.distributed.all_to_all_single(
            received,
            sent,
            output_split_sizes=sizes,
            input_split_sizes=[part.numel() for part in parts],
            group=self._group,
        )
        found = torch.split(received, sizes)
        return [part.view(shape) for part, shape in zip(found, shapes, strict=True)]

    def all_gather(
        self, tensor: Tensor, shapes: Sequence[tuple[int, ...]]
    ) -> list[Tensor]:
        """Gathers in one call where all are alike."""
        if len(set(shapes)) == 1:
            found = [torch.empty_like(tensor, memory_format=torch.contiguous_format)]
            found += [torch.empty_like(found[0]) for _ in shapes[1:]]
            torch.distributed.all_gather(found, tensor.contiguous(), group=self._group)
            return found
        return self.all_to_all([tensor] * self.size, shapes)


class _Room:
    """Where the threads of a rehearsal meet."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.said: dict[int, Sequence[Tensor]] = {}


class _ThreadExchange:
    """Goes through the memory of this process."""

    def __init__(self, room: _Room, rank: int, size: int) -> None:
        self._room, self.rank, self.size = room, rank, size

    def all_to_all(
        self, parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]
    ) -> list[Tensor]:
        del shapes
        self._room.said[self.rank] = parts
        self._room.barrier.wait()
        found = [self._room.said[rank][self.rank].clone() for rank in range(self.size)]
        # Nobody says the next before all have heard this.
        self._room.barrier.wait()
        return found

    def all_gather(
        self, tensor: Tensor, shapes: Sequence[tuple[int, ...]]
    ) -> list[Tensor]:
        return self.all_to_all([tensor] * self.size, shapes)


def rehearse(
    function: Callable[[CollectiveChannel], _Result],
    size: int,
    *,
    timeout_s: float = 60.0,
) -> list[_Result]:
    """Runs a function as each rank of an axis, in threads of this process.

    Args:
        function: Given the exchange of its rank.
        size: How many ranks.
        timeout_s: How long a rank may wait for another one.

    Returns:
        What it returned, by rank.

    Raises:
        Exception: What the function raised first on any rank.

    Example:
        >>> def total(exchange):
        ...     mine = torch.tensor([float(exchange.rank)])
        ...     return sum(exchange.all_gather(mine, [(1,)] * 3)).item()
        >>> rehearse(total, 3)
        [3.0, 3.0, 3.0]
    """
    room = _Room(size)
    results: dict[int, _Result] = {}
    failed: list[Exception] = []
    # Gradient mode and the like belong to a thread.
    is_training = torch.is_grad_enabled()

    def run(rank: int) -> None:
        try:
            with torch.set_grad_enabled(is_training):
                results[rank] = function(_ThreadExchange(room, rank, size))
        except threading.BrokenBarrierError:
            pass
        except Exception as error:  # noqa: BLE001
            # Raised again by the caller; the others must not wait for this one.
            failed.append(error)
        finally:
            if rank not in results:
                room.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
        if thread.is_alive():
            room.barrier.abort()
            thread.join()
    if failed:
        raise failed[0]
    if len(results) < size:
        message = f"a rank of {size} waited {timeout_s:g} s in vain for the others"
        raise TimeoutError(message)
    return [results[rank] for rank in range(size)]
