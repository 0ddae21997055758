"""Kernels optimization: modules of a model replaced by fused ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import drivetrain_kernels
from drivetrain_core import (
    BaseOptimization,
    Code,
    Numerics,
    Ok,
    Option,
    Phase,
    Reject,
    Slot,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core import Choice, Config, Context, TrainingState

_LEAVE = "leave"
_IMPLEMENTATIONS = ("auto", _LEAVE, "triton", "torch", "compiled", "reference")
_OF_RMS_NORM = (*_IMPLEMENTATIONS, "eager")


class KernelsOptimization(BaseOptimization):
    """Lets fused ops stand in for norms, gated feed-forwards and losses, where they pay.

    An option says by which implementation a kind of module is replaced; "auto" is the
    op's own choice, where that is more than torch's operators, and "leave" leaves the
    kind alone.

    Example:
        >>> KernelsOptimization().normalize({"swiglu": "triton"})["swiglu"]
        'triton'
    """

    name = "kernels"
    slot = Slot.KERNELS
    phase = Phase.MODEL_SWAP
    options = {
        "rms_norm": Option("auto", choices=_OF_RMS_NORM),
        "layer_norm": Option("auto", choices=_IMPLEMENTATIONS),
        "swiglu": Option("auto", choices=_IMPLEMENTATIONS),
        "geglu": Option("auto", choices=_IMPLEMENTATIONS),
        "cross_entropy": Option("auto", choices=_IMPLEMENTATIONS),
    }
    # Sums within a row have another order.
    numerical_change = Numerics.REORDER

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns the defaults on a GPU; elsewhere torch's operators do the same."""
        return [self.normalize(None)] if context.device.triton else []

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects Triton where there is no device for it."""
        del plan
        named = [kind for kind, impl in config.items() if impl == "triton"]
        if not named:
            return Ok()
        # Loading this module must not import torch, which that one needs.
        from drivetrain_kernels import _available

        missing = _available.triton_missing(context.device.type)
        if missing is None:
            return Ok()
        return Reject(
            Code.NEEDS_DEVICE,
            f"the implementation triton of {', '.join(named)} {missing}",
            "use auto",
        )

    def apply(self, state: TrainingState, config: Config) -> None:
        """Replaces the modules, in place."""
        plan = {kind: str(impl) for kind, impl in config.items() if impl != _LEAVE}
        drivetrain_kernels.replace(state.module, plan)
