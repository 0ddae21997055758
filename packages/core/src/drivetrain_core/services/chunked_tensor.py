"""A tensor of which this rank holds some blocks, in memory that belongs to others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Chunk:
    """A block of a tensor.

    Args:
        offset: Where it begins in each dimension of the whole.
        tensor: A tensor or a DTensor; of a DTensor the offset is that of all ranks'
            parts together.
        writes: Whether this rank saves it, and not another that holds the same.
    """

    offset: tuple[int, ...]
    tensor: torch.Tensor
    writes: bool = True

    def local(self) -> torch.Tensor:
        """Returns what this rank has of the block, sharing its memory."""
        tensor: Any = self.tensor.detach()
        found: torch.Tensor = (
            tensor.to_local() if hasattr(tensor, "to_local") else tensor
        )
        return found

    def local_offset(self) -> tuple[int, ...]:
        """Returns where this rank's part begins in each dimension of the whole."""
        inner = (0,) * self.tensor.dim()
        # What torch's own checkpoints ask: it knows uneven and strided shards.
        chunks = getattr(self.tensor, "__create_chunk_list__", None)
        if chunks is not None:
            inner = tuple(chunks()[0].offsets)
        return tuple(a + b for a, b in zip(self.offset, inner, strict=True))


class ChunkedTensor(torch.Tensor):
    """A whole tensor by its name, of which this rank holds blocks.

    `torch.distributed.checkpoint` saves its blocks and reads into them as it does those
    of a DTensor; there may be none, one or several. There is nothing else that can be
    done with one: it has a shape and a dtype, and no values of its own.

    Args:
        shape: The shape of the whole.
        chunks: This rank's blocks; one at least. Two of them are equal or do not
            overlap.

    Example:
        >>> halves = [Chunk(offset=(0,), tensor=torch.ones(2)),
        ...           Chunk(offset=(2,), tensor=torch.zeros(2))]
        >>> ChunkedTensor((4,), halves)
        ChunkedTensor([4], torch.float32, 2 chunks)
    """

    chunks: tuple[Chunk, ...]

    @staticmethod
    def __new__(  # noqa: PYI034 - it is made by torch, as one of this class
        cls: type[ChunkedTensor], shape: tuple[int, ...], chunks: Sequence[Chunk]
    ) -> ChunkedTensor:
        """Returns a tensor without memory."""
        first = chunks[0].tensor
        make: Any = torch.Tensor._make_wrapper_subclass
        found: ChunkedTensor = make(cls, shape, dtype=first.dtype, device=first.device)
        found.chunks = tuple(chunks)
        return found

    def __init__(self, shape: tuple[int, ...], chunks: Sequence[Chunk]) -> None:
        """Has been filled by `__new__`."""

    def __repr__(self, **kwargs: object) -> str:  # type: ignore[override]
        """Returns shape, dtype and the number of chunks."""
        return f"ChunkedTensor({list(self.shape)}, {self.dtype}, {len(self.chunks)} chunks)"

    def detach(self) -> ChunkedTensor:
        """Returns the tensor itself: it is part of no graph."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ChunkedTensor:
        """Returns one with blocks of its own."""
        chunks = [
            replace(chunk, tensor=chunk.tensor.detach().clone())
            for chunk in self.chunks
        ]
        found = ChunkedTensor(tuple(self.shape), chunks)
        memo[id(self)] = found
        return found

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuses every operation.

        Raises:
            TypeError: Always.
        """
        del types, args, kwargs
        message = (
            f"{func} on a {cls.__name__}, which holds blocks for a checkpoint and no "
            "values of its own; take .chunks, or save and load it"
        )
        raise TypeError(message)

    def local_chunks(self) -> list[tuple[tuple[int, ...], torch.Tensor]]:
        """Returns the offset and the local part of each block that is not empty."""
        found = [(chunk.local_offset(), chunk.local()) for chunk in self.chunks]
        return [(offset, local) for offset, local in found if local.numel()]

    def written(self) -> list[tuple[tuple[int, ...], torch.Tensor]]:
        """Returns the blocks that this rank saves, equal ones once."""
        mine = (
            (chunk.local_offset(), chunk.local())
            for chunk in self.chunks
            if chunk.writes
        )
        return list({offset: (offset, t) for offset, t in mine if t.numel()}.values())

    # The protocol by which torch.distributed.checkpoint asks tensors for their blocks.

    def __create_write_items__(self, fqn: str, _: object) -> list[WriteItem]:
        """Returns what this rank saves."""
        return [
            WriteItem(
                index=MetadataIndex(fqn, torch.Size(offset)),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=_storage(offset, local),
                    properties=TensorProperties.create_from_tensor(local),
                    size=self.shape,
                ),
            )
            for offset, local in self.written()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """Returns what this rank reads."""
        return [_storage(offset, local) for offset, local in self.local_chunks()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """Returns the memory of one block.

        Raises:
            ValueError: There is no such block here.
        """
        found = self.local_chunks()
        at = index.index
        if (
            at is not None
            and at < len(found)
            and torch.Size(found[at][0]) == index.offset
        ):
            return found[at][1]
        for offset, local in found:
            if index.offset is None or torch.Size(offset) == index.offset:
                return local
        message = f"this rank holds no block of {index.fqn!r} at {index.offset}"
        raise ValueError(message)


def _storage(offset: tuple[int, ...], local: torch.Tensor) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=torch.Size(offset), sizes=local.size())
