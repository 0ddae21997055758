"""The tensors of a built program by the names of the model as written, and whole.

Over a mesh a rank has a stage of the model, shards of matrices, and parts of fused ones.
What the guard compares is put together here, so that a plan with a mesh is held to the
program as written like any other.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from drivetrain_core.numerics.checksum import gathered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from drivetrain_core._accelerated import Accelerated
    from drivetrain_core.services.model_layout import Placement

_Value = TypeVar("_Value")


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the whole of a tensor that may be sharded; every rank must call this."""
    whole = getattr(tensor, "full_tensor", None)
    return (whole() if whole is not None else tensor).detach()


class View:
    """Looks at a built program.

    Args:
        accelerated: The program.

    Attributes:
        copies: How many ranks read each sample.
        is_meshed: Whether the model is laid over a mesh.
    """

    def __init__(self, accelerated: Accelerated) -> None:
        """Asks for the names once."""
        self._models = accelerated.models()
        self.is_meshed = accelerated.is_meshed
        self._is_staged = accelerated.is_staged
        self.copies = accelerated.context.world.size // accelerated.data_size
        self._places: dict[str, Placement] = {}
        self._names: dict[str, str] = {}
        if accelerated.layout is not None:
            self._places = accelerated.layout.placements()
            self._names = accelerated.layout.parameter_names()

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns this rank's parameters, under their names here."""
        return dict(chain.from_iterable(m.named_parameters() for m in self._models))

    def buffers(self) -> dict[str, torch.Tensor]:
        """Returns this rank's buffers, under their names here."""
        return dict(chain.from_iterable(m.named_buffers() for m in self._models))

    def gradients(self) -> dict[str, torch.Tensor]:
        """Returns the gradients of this rank's parameters that have one."""
        return {n: p.grad for n, p in self.parameters().items() if p.grad is not None}

    def name(self, name: str) -> str:
        """Returns the name in the model as written of what has a name here."""
        return self._names.get(name, name)

    def whole(
        self, tensors: Mapping[str, torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields whole tensors one after the other, by the names of the model.

        All ranks that have them must go through it.

        Args:
            tensors: Parameters, or what is laid out as they are, by their names here.
        """
        parts: dict[str, torch.Tensor] = {}
        left: dict[str, int] = {}
        for name, tensor in tensors.items():
            place = self._places.get(name)
            if place is None or tuple(place.global_shape) == tuple(tensor.shape):
                yield self.name(name), full(tensor)
                continue
            part = full(tensor)
            shape = tuple(place.global_shape)
            if place.name not in parts:
                parts[place.name] = part.new_zeros(shape)
                left[place.name] = parts[place.name].numel()
            where = tuple(
                slice(o, o + n) for o, n in zip(place.offset, part.shape, strict=True)
            )
            parts[place.name][where] = part
            left[place.name] -= part.numel()
            if not left[place.name]:
                yield self.name(name), parts.pop(place.name)

    def number(self, tensors: Mapping[str, torch.Tensor]) -> int:
        """Returns how many of these the model has, over all stages."""
        return len(self.united({self.name(name): True for name in tensors}))

    def united(self, named: dict[str, _Value]) -> dict[str, _Value]:
        """Returns what all stages have together; each rank must call this.

        Args:
            named: What this rank has, by the names of the model.
        """
        if not self._is_staged:
            return named
        # Of what several have, the first one's stands.
        every = reversed(gathered(named))
        return dict(chain.from_iterable(other.items() for other in every))
