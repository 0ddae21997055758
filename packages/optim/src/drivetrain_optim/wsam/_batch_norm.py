"""Running statistics that a second pass over the same batch must not count again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

if TYPE_CHECKING:
    from torch import Tensor, nn

_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class RunningStatistics:
    """A copy of the running statistics of a model's normalization layers.

    Layers are all that derive from torch's `_NormBase`: BatchNorm, SyncBatchNorm and
    InstanceNorm, also within DDP, FSDP2 and compiled modules. Copying back has three
    advantages over setting a layer's momentum to 0: the count of batches and
    cumulative averages (`momentum=None`) stay right, nothing that a compiled graph
    guards on changes, and an exception cannot leave the layer switched off. Layers in
    train mode normalize with the batch, never with what is copied here.

    Args:
        model: The model.

    Example:
        >>> layer = torch.nn.BatchNorm1d(2, momentum=None)
        >>> saved = RunningStatistics(layer)
        >>> _ = layer(torch.randn(4, 2))
        >>> saved.restore()
        >>> layer.running_mean, layer.num_batches_tracked
        (tensor([0., 0.]), tensor(0))
    """

    def __init__(self, model: nn.Module) -> None:
        """Copies the statistics; layers that are still lazy have none."""
        found: dict[int, Tensor] = {}  # by identity, for layers that share a buffer
        for module in model.modules():
            if isinstance(module, _NormBase):
                for name in _BUFFERS:
                    buffer: Tensor | None = getattr(module, name, None)
                    if buffer is not None and not is_lazy(buffer):
                        found[id(buffer)] = buffer
        self._buffers = list(found.values())
        self._copies = [buffer.detach().clone() for buffer in self._buffers]

    @torch.no_grad()
    def restore(self) -> None:
        """Puts the statistics back, bit for bit."""
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._copies)
