"""A training run in a process of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import drivetrain_core
    from drivetrain.quickstart._channel import Child
    from drivetrain.quickstart._job import Target


@dataclass(kw_only=True, slots=True)
class Run:
    """One of the two runs that are compared.

    Args:
        name: What is trained.
        child: The process.
        facts: What it says of its program.
        start_s: What the start took, up to the end of the first step.
        first_step_s: What that step took, which compiles.
        times_s: What each step took that was timed.
        losses: Of each step that was made.
        peak_bytes: The peaks of memory, one a turn.
        peak_flops_per_s: What the device could do, one a turn.
    """

    name: str
    child: Child
    facts: dict[str, Any] = field(default_factory=dict)
    start_s: float = 0.0
    first_step_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    peak_flops_per_s: list[float] = field(default_factory=list)

    def build(self, target: Target, choices: Sequence[drivetrain_core.Choice]) -> None:
        """Runs the script up to its `accelerate`.

        Args:
            target: Whose program it is.
            choices: The plan.
        """
        began_s = time.monotonic()
        self.facts = self.child.ask(
            "build",
            script=target.script,
            arguments=list(target.arguments),
            choices=[[one.name, dict(one.config)] for one in choices],
        )
        self.start_s += time.monotonic() - began_s

    def begin(self, order: Path) -> None:
        """Begins to read the samples in an order, and makes the first step."""
        began_s = time.monotonic()
        self.child.ask("open", path=str(order))
        self.complete(1)
        self.first_step_s = time.monotonic() - began_s
        self.start_s += self.first_step_s

    def train(self, steps: int) -> None:
        """Makes steps, keeps the time of each, and measures the device beside them."""
        made = self.child.ask("train", num_steps=steps)
        self.times_s += made["times_s"]
        self.losses += made["losses"]
        self.peak_flops_per_s.append(self.child.ask("peak"))
        self.peak_bytes.append(self.child.ask("memory"))

    def complete(self, steps: int) -> None:
        """Makes the steps up to a number, if they are not made yet, without timing."""
        left = steps - len(self.losses)
        if left > 0:
            self.losses += self.child.ask("train", num_steps=left)["losses"]
