"""Parallelized model: what this rank has of a model over a mesh, by canonical names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_core.extending import named_modules, named_parts
from drivetrain_core.services.chunked_tensor import Chunk, ChunkedTensor
from drivetrain_core.services.tensor_spec import TensorSpec
from drivetrain_parallel.tensor.local_view import packed_of, part_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor, nn

    from drivetrain_parallel.pipeline import PipelinePlan


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeModel:
    """What a model holds as written, before it was laid over a mesh.

    Args:
        tensors: Its parameters and buffers by their first name.
        parameters: The names of the parameters among them.
    """

    tensors: Mapping[str, TensorSpec]
    parameters: frozenset[str]


def whole_model(model: nn.Module) -> WholeModel:
    """Returns what a model holds.

    Args:
        model: The model as written.

    Raises:
        NamesError: Two tensors have one name.

    Example:
        >>> from torch import nn
        >>> whole_model(nn.Linear(2, 3)).tensors["weight"].global_shape
        (3, 2)
    """
    parts = named_parts(model)
    return WholeModel(
        tensors={
            name: TensorSpec(
                name=name, global_shape=tuple(tensor.shape), dtype=tensor.dtype
            )
            for name, tensor in parts.tensors.items()
        },
        parameters=frozenset(parts.parameters),
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Piece:
    """A parameter or buffer of this rank, as a block of one of the model as written.

    Args:
        name: The first name of that one.
        global_shape: Its shape.
        offset: Where the piece begins in it.
        tensor: The piece; a DTensor where ranks share it.
        counts: Whether it counts on this rank's stage, and not on an earlier one that
            holds it too.
        is_parameter: Whether it is a parameter.
        key: A name of its own among all pieces of this rank.
    """

    name: str
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    tensor: Tensor
    counts: bool
    is_parameter: bool
    key: str

    @property
    def is_whole(self) -> bool:
        """Returns whether it is all of the one that the model has."""
        return tuple(self.tensor.shape) == self.global_shape


class ParallelizedModel:
    """What this rank has of a model.

    Args:
        models: The model; or one for each stage of this rank.
        whole: What the model held as written.
        stages: The index of each stage; empty without a pipeline.
        pipeline: How the model is split into stages, if it is.

    Attributes:
        whole: As given.
        models: As given.

    Example:
        >>> from torch import nn
        >>> model = nn.Linear(2, 3)
        >>> laid = ParallelizedModel([model], whole_model(model))
        >>> [(piece.name, piece.offset) for piece in laid.pieces()]
        [('weight', (0, 0)), ('bias', (0,))]
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        whole: WholeModel,
        *,
        stages: Sequence[int] = (),
        pipeline: PipelinePlan | None = None,
    ) -> None:
        """Keeps the parts; nothing is looked at yet."""
        self.models = tuple(models)
        self.whole = whole
        self._stages = tuple(stages) or (None,) * len(self.models)
        self._pipeline = pipeline

    def pieces(self) -> list[Piece]:
        """Returns what there is now, each tensor once."""
        found: dict[int, Piece] = {}
        for stage, model in zip(self._stages, self.models, strict=True):
            for piece in self._of_stage(stage, model):
                found.setdefault(id(piece.tensor), piece)
        return list(found.values())

    def modules(self) -> dict[str, nn.Module]:
        """Returns the modules that are here, by name; those of the first stage win."""
        found: dict[str, nn.Module] = {}
        for model in self.models:
            for name, module in named_modules(model).items():
                found.setdefault(name, module)
        return found

    def _of_stage(self, stage: int | None, model: nn.Module) -> Iterable[Piece]:
        for prefix, module in named_modules(model).items():
            before = f"{prefix}." if prefix else ""
            for own, tensor in module._parameters.items():
                if tensor is not None:
                    yield self._piece(stage, module, before, own, tensor)
            hidden = module._non_persistent_buffers_set
            for own, buffer in module._buffers.items():
                if buffer is not None and own not in hidden:
                    yield self._piece(
                        stage, module, before, own, buffer, is_parameter=False
                    )

    def _piece(
        self,
        stage: int | None,
        module: nn.Module,
        before: str,
        own: str,
        tensor: Tensor,
        *,
        is_parameter: bool = True,
    ) -> Piece:
        name, shape, offset = before + own, tuple(tensor.shape), [0] * tensor.dim()
        for packed_name, packed in packed_of(module).items():
            names = [part_name(packed_name, n) for n in range(len(packed.sizes))]
            if own in names:
                name, shape = before + packed_name, packed.shape
                offset[packed.dim] = sum(packed.sizes[: names.index(own)])
        counts = True
        if stage is not None and self._pipeline is not None:
            counts = self._pipeline.owns(stage, name)
            name = self._pipeline.canonical_name(stage, name)
        return Piece(
            name=name,
            global_shape=tuple(shape),
            offset=tuple(offset),
            tensor=tensor,
            counts=counts,
            is_parameter=is_parameter,
            key=f"{stage or 0}:{before}{own}",
        )


def joined(
    parts: Iterable[tuple[str, tuple[int, ...], Chunk]],
) -> dict[str, ChunkedTensor]:
    """Returns one tensor a name, of all chunks that are there of it.

    Args:
        parts: Name, shape of the whole, and a block of it.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    chunks: dict[str, list[Chunk]] = {}
    for name, shape, chunk in parts:
        shapes[name] = shape
        chunks.setdefault(name, []).append(chunk)
    return {name: ChunkedTensor(shapes[name], found) for name, found in chunks.items()}
