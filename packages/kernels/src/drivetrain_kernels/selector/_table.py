"""The table that explains a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain_kernels.selector._decide import Trial

_HEADER = ("candidate", "status", "compile s", "step ms", "of eager", "graphs", "why")


def table(trials: Sequence[Trial], verdicts: Mapping[str, str], choice: str) -> str:
    """Returns trials as text, the choice marked by a star.

    Args:
        trials: What was measured.
        verdicts: By candidate, what was decided on it.
        choice: The candidate that is kept.

    Example:
        >>> from drivetrain_kernels.selector._decide import Trial
        >>> eager = Trial(name="eager", status="ok", step_s=0.002, ratio=1.0)
        >>> bad = Trial(name="block", status="failed", why="RuntimeError: no")
        >>> print(table([eager, bad], {"block": "RuntimeError: no"}, "eager"))
        candidate  status  compile s  step ms  of eager  graphs  why
        * eager    ok            0.0     2.00     1.000       0  the baseline
          block    failed                                        RuntimeError: no
    """
    rows = [
        _row(t, verdicts.get(t.name, "the baseline"), t.name == choice) for t in trials
    ]
    cells = [_HEADER, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(_HEADER))]
    lines = []
    for row in cells:
        parts = [
            cell.rjust(width) if 2 <= i <= 5 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def _row(trial: Trial, verdict: str, chosen: bool) -> tuple[str, ...]:
    name = f"{'* ' if chosen else '  '}{trial.name}"
    if trial.status != "ok":
        return (name, trial.status, "", "", "", "", verdict)
    why = f"{verdict}; {trial.why}" if trial.why else verdict
    return (
        name,
        trial.status,
        f"{trial.compile_s:.1f}",
        f"{trial.step_s * 1e3:.2f}",
        f"{trial.ratio:.3f}",
        str(trial.num_graphs),
        why,
    )
