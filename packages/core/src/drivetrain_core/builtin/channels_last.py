"""Channels-last memory format for convolutional models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core._choice import Choice, Config, Numerics, Ok, Phase, Reject, Slot
from drivetrain_core._data.batch import map_tensors
from drivetrain_core._errors import Code
from drivetrain_core._model.forward import Forward, wrap_forward
from drivetrain_core._optimization import BaseOptimization

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core._context import Context
    from drivetrain_core._state import TrainingState

_IMAGE_DIMS = 4


class ChannelsLast(BaseOptimization):
    """Stores images and convolution weights as NHWC; shapes stay NCHW."""

    name = "channels_last"
    slot = Slot.MEMORY_FORMAT
    phase = Phase.MODEL_SWAP
    # Another kernel sums in another order.
    numerical_change = Numerics.REORDER

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns one configuration for models with 2-d convolutions, else none."""
        return [{}] if context.model.has_conv2d else []

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects models without a 2-d convolution."""
        del config, plan
        if context.model.has_conv2d:
            return Ok()
        return Reject(Code.NOT_APPLICABLE, "the model has no 2-d convolution")

    def apply(self, state: TrainingState, config: Config) -> None:
        """Converts the weights, and 4-d inputs of the forward."""
        del config
        state.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        wrap_forward(state.module, _convert_inputs)


def _convert_inputs(forward: Forward) -> Forward:
    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim == _IMAGE_DIMS:
            return tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def run(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        return forward(
            self, *map_tensors(convert, args), **map_tensors(convert, kwargs)
        )

    return run
