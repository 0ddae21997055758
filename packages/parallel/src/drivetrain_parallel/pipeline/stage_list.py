"""Several stages of one rank as one module, under the names of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from drivetrain_core.extending import mark_as_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class StageList(nn.Module):
    """The parameters and buffers of several stages, each under its own name.

    Args:
        models: What each stage has of the model; no block is in two of them.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        """Keeps the models."""
        super().__init__()
        self.models = nn.ModuleList(models)
        mark_as_part(self)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields each parameter under its name in the model."""
        seen: set[Any] = set()
        for model in self.models:
            found = model.named_parameters(prefix, recurse, remove_duplicate)
            for name, parameter in found:
                if not (remove_duplicate and parameter in seen):
                    seen.add(parameter)
                    yield name, parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """Yields each buffer under its name in the model, once."""
        seen: set[str] = set()
        for model in self.models:
            for name, buffer in model.named_buffers(prefix, recurse, remove_duplicate):
                if name not in seen:
                    seen.add(name)
                    yield name, buffer
