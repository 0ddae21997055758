"""This package's allocator as an optimization: PyTorch's, for the whole program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import drivetrain_memory
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


class VirtualMemoryOptimization(BaseOptimization):
    """Lets scattered device memory be joined, so that a larger model or batch fits.

    It must come before CUDA is used in a process. Where a program has used CUDA already,
    call `drivetrain_memory.enable()` at its top instead.

    Example:
        >>> VirtualMemoryOptimization().normalize({"headroom": 0.02})
        {'headroom': 0.02}
    """

    name = "virtual_memory"
    slot = Slot.ALLOCATOR
    phase = Phase.ENVIRONMENT
    options = {"headroom": Option(None, kind=float, minimum=0.0, optional=True)}

    def numerics(self, config: Config) -> Numerics:
        """Returns `EXACT`: the numbers lie elsewhere, and stay the same."""
        del config
        return Numerics.EXACT

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns one configuration on a GPU, else none."""
        return [self.normalize(None)] if context.device.type == "cuda" else []

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects other devices, trees of graphs, a process that uses CUDA already."""
        del config
        if context.device.type != "cuda":
            return Reject(
                Code.NEEDS_DEVICE,
                f"the model trains on {context.device.name}",
                "drop it",
            )
        if any(choice.config.get("choice") == "cudagraphs" for choice in plan):
            return Reject(
                Code.CONFLICT,
                "trees of CUDA graphs ask PyTorch's own allocator for its state",
                "compile without graphs, or drop it",
            )
        if _comes_too_late():
            return Reject(
                Code.ORDER,
                "CUDA is in use already in this process",
                "call drivetrain_memory.enable() at the top of the program",
            )
        return Ok()

    def apply(self, state: TrainingState, config: Config) -> None:
        """Makes it PyTorch's allocator, unless it is."""
        del state
        if not drivetrain_memory.is_enabled():
            given = config["headroom"]
            headroom = None if given is None else float(str(given))
            drivetrain_memory.enable(headroom=headroom)


def _comes_too_late() -> bool:
    import torch

    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return in_use and not drivetrain_memory.is_enabled()
