"""Source of tensors by name: a file of `torch.save`, read without running its code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from drivetrain_checkpoint._formats.torch_file import torch_load
from drivetrain_core.services import TensorSpec

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


class TorchSource:
    """A file of `torch.save`; its tensors are mapped, not read, until they are needed.

    Args:
        path: The file.

    Raises:
        CorruptCheckpointError: It is damaged.
        ForeignCheckpointError: It holds objects of classes that are not allowed.
    """

    kind = "torch"

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._tensors: dict[str, Tensor] = {}
        self._values: dict[str, Any] = {}
        self._add("", torch_load(path, map_location="cpu", mmap=True))
        self.tensors: Mapping[str, TensorSpec] = {
            name: TensorSpec(
                name=name, global_shape=tuple(tensor.shape), dtype=tensor.dtype
            )
            for name, tensor in self._tensors.items()
        }

    def values(self) -> dict[str, Any]:
        """Returns what is no tensor."""
        return dict(self._values)

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Copies the tensors."""
        for name, target in targets.items():
            saved: Any = self._tensors[name].detach()
            if isinstance(target, DTensor):
                saved = distribute_tensor(
                    saved, target.device_mesh, target.placements, src_data_rank=None
                )
            with torch.no_grad():
                target.copy_(saved)

    def _add(self, name: str, value: Any) -> None:
        """Takes the leaves of a nested state, named by the way to them."""
        if isinstance(value, torch.Tensor):
            self._tensors[name or "tensor"] = value
        elif isinstance(value, Mapping) and value:
            for key, part in value.items():
                self._add(f"{name}.{key}" if name else str(key), part)
        elif isinstance(value, list | tuple) and _has_tensor(value):
            for number, part in enumerate(value):
                self._add(f"{name}.{number}" if name else str(number), part)
        else:
            self._values[name or "value"] = value


def _has_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_tensor, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_tensor, value))
    return isinstance(value, torch.Tensor)
