"""Shows a search as it runs: a bar on a terminal, a line a trial elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from drivetrain_core.extending import describe
from drivetrain_search.report.record import TrialRecord, speed_text

if TYPE_CHECKING:
    from drivetrain_core.budget import Budget
    from drivetrain_search.descent import Choices


class SilentProgress:
    """Shows nothing."""

    def __enter__(self) -> Self:
        """Begins."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends."""

    def starting(self, name: str, choices: Choices) -> None:
        """Shows nothing."""

    def finished(self, record: TrialRecord) -> None:
        """Shows nothing."""


class ConsoleProgress:
    """Writes to standard error: a line a trial, and on a terminal a bar below."""

    def __init__(self, budget: Budget) -> None:
        """Prepares the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar = Progress(
            TextColumn("[bold]search"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} trials"),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=budget.trials)
        self._baseline_s: float | None = None

    def __enter__(self) -> Self:
        """Shows the bar."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Removes the bar."""
        self._bar.stop()

    def starting(self, name: str, choices: Choices) -> None:
        """Names what runs now."""
        text = f"{name}: {describe(choices)}"
        self._bar.update(self._task, description=text)

    def finished(self, record: TrialRecord) -> None:
        """Writes the trial's line."""
        self._bar.advance(self._task)
        plan = describe(record.choices)
        if record.measurement is None:
            text = record.reason
        else:
            step_s = record.measurement.quiet_step_time_s
            if self._baseline_s is None:
                self._baseline_s = step_s
            text = f"{speed_text(record.measurement)}, {self._baseline_s / step_s:.2f}x"
            if record.code:
                text += f", {record.reason}"
        took = "of an earlier search" if record.cached else f"{record.seconds:.1f} s"
        self._console.print(f"{record.name}  {text}  {plan}  ({took})", markup=False)
