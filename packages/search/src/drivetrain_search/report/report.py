"""Every trial of a search: as a table, as a picture, as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_core import MissingLibraryError
from drivetrain_core.extending import describe
from drivetrain_search.report.data import ReportData
from drivetrain_search.report.html import write_page
from drivetrain_search.report.record import TrialRecord, count_text, speed_text

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from rich.table import Table


_MIB = 1 << 20
_NEEDS_PLOT = "the picture needs matplotlib: pip install 'drivetrain-search[plot]'"


class Report(ReportData):
    """What a search did, to be shown.

    It holds what `ReportData` says.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        """Returns what was chosen, and the figure against the program as written."""
        tried, plan = count_text(self.trials), describe(self.chosen)
        taken = (
            f"{tried} in {self.seconds:.0f} s; report.table() and html(path) show all"
        )
        measured = [t for t in self.trials if t.measurement and not t.code]
        own = next((t for t in measured if t.choices == self.chosen), None)
        if own is None or own is self.baseline:
            return f"the program as written is kept: {self.stopped}; {taken}"
        gain, why = self.speedup(own), "in its trial"
        if self.comparison is not None:
            gain = self.comparison.speedup
            why = f"{self.comparison.low:.2f}x to {self.comparison.high:.2f}x"
        return f"chosen: {plan}, {gain:.2f}x the program as written ({why}); {taken}"

    def table(self) -> Table:
        """Returns the trials as a `rich` table, the fastest first."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=f"{count_text(self.trials)} in {self.seconds:.0f} s")
        columns = ("trial", "plan", "speed", "vs baseline", "peak MiB", "result")
        for column in columns:
            numeric = column in ("speed", "vs baseline", "peak MiB")
            table.add_column(
                column,
                justify="right" if numeric else "left",
                no_wrap=numeric,
                overflow="fold",
            )
        for trial in _fastest_first(self.trials):
            mark = "chosen" if trial.choices == self.chosen else ""
            style = "bold green" if mark else ("dim" if trial.code else "")
            table.add_row(*map(Text, self._cells(trial, mark)), style=style)
        return table

    def _cells(self, trial: TrialRecord, mark: str) -> tuple[str, ...]:
        failed = trial.reason or mark
        if trial.cached:
            failed += f"{', ' if failed else ''}of an earlier search"
        name, plan = trial.name, describe(trial.choices)
        if trial.measurement is None:
            return (name, plan, "-", "-", "-", failed)
        return (
            name,
            plan,
            speed_text(trial.measurement),
            f"{self.speedup(trial):.2f}x",
            f"{trial.measurement.peak_memory_bytes / _MIB:,.0f}",
            failed,
        )

    def picture(self, path: str | os.PathLike[str]) -> Path:
        """Draws each trial's speed beside the baseline's, and returns the file's path.

        Raises:
            MissingLibraryError: matplotlib is not installed; the message says how to.
        """
        trials = _fastest_first(self.trials)
        figure = require_matplotlib()(
            figsize=(9, 1.2 + 0.42 * len(trials)), layout="constrained"
        )
        axes = figure.subplots()
        for row, trial in enumerate(trials):
            self._draw(axes, row, trial)
        axes.set_yticks(
            range(len(trials)), [describe(trial.choices) for trial in trials]
        )
        axes.invert_yaxis()
        axes.axvline(1.0, color="0.5", linewidth=1, linestyle="--")
        axes.set_xlabel("speed relative to the baseline")
        axes.set_title(f"{count_text(trials)} in {self.seconds:.0f} s")
        axes.margins(x=0.12)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        target = Path(path)
        figure.savefig(target, dpi=130)
        return target

    def html(self, path: str | os.PathLike[str]) -> Path:
        """Writes the report as one HTML page, and returns the file's path.

        The page needs nothing else: no other file, no network, no script to be read.

        Raises:
            OSError: The place cannot be written to.
        """
        return write_page(self, path)

    def _draw(self, axes: Any, row: int, trial: TrialRecord) -> None:
        if trial.measurement is None:
            axes.text(0.02, row, trial.code, va="center", color="tab:red")
            return
        ratio = self.speedup(trial)
        chosen = trial.choices == self.chosen
        color = "tab:green" if chosen else "tab:blue"
        axes.barh(row, ratio, color="tab:red" if trial.code else color, height=0.65)
        label = f" {ratio:.2f}x" + (f" {trial.code}" if trial.code else "")
        axes.text(ratio, row, label, va="center")


def require_matplotlib() -> Any:
    """Returns matplotlib's class of figures.

    Raises:
        MissingLibraryError: matplotlib is not installed; the message says how to.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingLibraryError(_NEEDS_PLOT) from error
    return Figure


def _fastest_first(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    def key(trial: TrialRecord) -> float:
        slow = float("inf")
        return trial.measurement.quiet_step_time_s if trial.measurement else slow

    return sorted(trials, key=key)
