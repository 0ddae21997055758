"""Threads that torch uses for one operator on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from drivetrain_core._choice import Numerics, Ok, Option, Phase, Reject, Slot
from drivetrain_core._errors import Code
from drivetrain_core._optimization import BaseOptimization, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core._choice import Choice, Config
    from drivetrain_core._context import Context
    from drivetrain_core._state import TrainingState


class CpuThreads(BaseOptimization):
    """Sets the number of threads; more than the cores only makes them wait."""

    name = "cpu_threads"
    slot = Slot.CPU_THREADS
    phase = Phase.ENVIRONMENT
    options = {"num": Option(1, minimum=1)}
    shorthand = "num"
    # Sums are divided otherwise.
    numerical_change = Numerics.REORDER

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns all cores and half of them, split over the ranks of this node."""
        if context.device.type != "cpu":
            return []
        share = max(1, context.device.num_cores // context.world.local_size)
        numbers = {share, max(1, share // 2)} - {context.device.num_threads}
        return [{"num": num} for num in sorted(numbers, reverse=True)]

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects accelerators, and more threads than cores."""
        del plan
        if context.device.type != "cpu":
            return Reject(
                Code.NEEDS_DEVICE, f"the model trains on {context.device.name}"
            )
        num = whole_number(config, "num")
        if num > context.device.num_cores:
            return Reject(
                Code.NEEDS_DEVICE,
                f"{num} threads on {context.device.num_cores} cores",
                f"use at most {context.device.num_cores}",
            )
        return Ok()

    def apply(self, state: TrainingState, config: Config) -> None:
        """Sets the number of threads of this process."""
        before = torch.get_num_threads()
        state.undo.append(lambda: torch.set_num_threads(before))
        torch.set_num_threads(whole_number(config, "num"))
