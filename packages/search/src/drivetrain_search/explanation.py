"""Writes the plan of a search: what was chosen, and the measured reason for each slot."""

from __future__ import annotations

import platform
import re
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core import Plan, Reason, Rejected
from drivetrain_core.extending import describe, find
from drivetrain_search.final import step_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core import Choice, Context, Measurement
    from drivetrain_search.descent import Choices
    from drivetrain_search.final import Comparison
    from drivetrain_search.report.record import TrialRecord
    from drivetrain_search.space import SlotSpace

_MIB = 1 << 20


def make_plan(
    context: Context,
    trials: Sequence[TrialRecord],
    chosen: Choices,
    comparison: Comparison | None,
    because: str,
    space: Sequence[SlotSpace],
    skipped: Sequence[Rejected],
    seconds: float,
    unfinished: str = "",
) -> Plan:
    """Returns the plan that a search chose.

    Args:
        context: The facts that it was made for.
        trials: Every trial.
        chosen: The choices.
        comparison: The final that they won; None when the baseline stayed.
        because: Why they were chosen.
        space: The slots that were asked.
        skipped: What was ruled out without a trial.
        seconds: What the search took.
        unfinished: Why it ended before it had tried what may gain; empty if it had.
    """
    record = next(trial for trial in trials if trial.choices == chosen)
    reasons = [Reason(slot="plan", chose=describe(chosen), because=because)]
    reasons += [_why(entry, chosen, trials, skipped, unfinished) for entry in space]
    failed = [
        Rejected(plan=describe(t.choices), code=t.code, because=t.because)
        for t in trials
        if t.code
    ]
    return Plan(
        choices=chosen,
        made={
            "core": version("drivetrain-core"),
            "torch": torch.__version__,
            "python": platform.python_version(),
            **context.summary(),
            "seconds": round(seconds, 1),
            "trials": len(trials),
        },
        fingerprint=context.fingerprint(),
        measured=_measured(record, comparison),
        guard=dict(record.guard or {}),
        why=tuple(reasons),
        rejected=(*failed, *skipped),
    )


def cost_of_required(
    trials: Sequence[TrialRecord], written: Choices, base: Choices
) -> str:
    """Returns how fast what is required runs beside the program as written.

    Args:
        trials: Every trial.
        written: The program as written.
        base: The same with what is required, which the other plans are held to.

    Returns:
        A clause that goes on with the reason of a plan; nothing where nothing is
        required, or where one of both was not measured.
    """
    speed = _speeds(trials)
    if base == written or written not in speed or base not in speed:
        return ""
    ratio = speed[base] / speed[written]
    return f"; what is required runs at {ratio:.2f}x of the program as written"


def not_tried(
    names: Iterable[str], trials: Sequence[TrialRecord], skipped: Sequence[Rejected]
) -> list[str]:
    """Returns those of the optimizations that were neither tried nor ruled out.

    Args:
        names: Their names.
        trials: Every trial.
        skipped: What was ruled out without a trial.
    """
    tried = {choice.name for trial in trials for choice in trial.choices}
    return [
        name
        for name in names
        if name not in tried
        and not any(re.search(rf"\b{name}\b", one.plan) for one in skipped)
    ]


def _measured(record: TrialRecord, comparison: Comparison | None) -> dict[str, Any]:
    if record.measurement is None:
        return {}
    best: Measurement = record.measurement
    measured: dict[str, Any] = {"vs_baseline": 1.0}
    if comparison is not None:
        best = comparison.plan
        measured["vs_baseline"] = round(comparison.speedup, 3)
        measured["ci95"] = [round(comparison.low, 3), round(comparison.high, 3)]
    low, high = step_interval(best)
    measured["step_ms"] = round(1e3 * best.step_time_s, 3)
    measured["step_ms_ci95"] = [round(1e3 * low, 3), round(1e3 * high, 3)]
    if best.tokens_per_s is not None:
        measured["tokens_per_s"] = round(best.tokens_per_s, 1)
    measured["samples_per_s"] = round(best.samples_per_s, 2)
    measured["peak_memory_mib"] = round(best.peak_memory_bytes / _MIB, 1)
    return measured


def _why(
    entry: SlotSpace,
    chosen: Choices,
    trials: Sequence[TrialRecord],
    skipped: Sequence[Rejected],
    unfinished: str,
) -> Reason:
    """Returns the reason for a slot: the trials that differ from the plan only there."""
    mine = _answer(entry, chosen)
    chose = str(mine) if mine else "off"
    speed = _speeds(trials)
    rivals = []
    for trial in trials:
        if _differ_in(trial.choices, chosen) != {entry.slot}:
            continue
        other = _answer(entry, trial.choices) or "off"
        if trial.choices in speed:
            ratio = speed[trial.choices] / speed[chosen]
            text = f"{other} measured {ratio:.2f}x of it"
            if ratio > 1.0:
                text += " in its trial, which alone decides nothing"
            rivals.append((ratio, text))
        elif trial.because:
            rivals.append((0.0, f"{other}: {trial.because.splitlines()[0]}"))
    if rivals:
        because = "; ".join(text for _, text in sorted(rivals, reverse=True))
        return Reason(slot=entry.slot.value, chose=chose, because=because)
    names = {str(candidate) for candidate in entry.candidates}
    known = [r.because for r in skipped if r.plan in names]
    nothing = "no plan that differs only here was measured"
    if mine:
        nothing = f"it is part of the best plan that was found; {nothing}"
    if unfinished and not _is_tried(entry, trials):
        nothing = f"nothing else was tried: {unfinished}"
    because = known[0] if known else nothing
    return Reason(slot=entry.slot.value, chose=chose, because=because)


def _is_tried(entry: SlotSpace, trials: Sequence[TrialRecord]) -> bool:
    return len({_answer(entry, trial.choices) for trial in trials}) > 1


def _speeds(trials: Sequence[TrialRecord]) -> dict[Choices, float]:
    return {
        trial.choices: 1.0 / trial.measurement.quiet_step_time_s
        for trial in trials
        if trial.usable and trial.measurement is not None
    }


def _answer(entry: SlotSpace, choices: Iterable[Choice]) -> Choice | None:
    return next((c for c in choices if find(c.name).slot is entry.slot), None)


def _differ_in(a: Choices, b: Choices) -> set[object]:
    return {find(choice.name).slot for choice in set(a) ^ set(b)}
