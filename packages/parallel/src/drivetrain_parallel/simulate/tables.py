"""The tables of `drivetrain simulate`, as Markdown that stands in the docs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_parallel.cost.rank_meshes import Candidate, Ranking
    from drivetrain_parallel.simulate.ablation import AblationOutcome
    from drivetrain_parallel.simulate.published import Outcome

_GIB = 2**30
_ROW_HEADER = (
    "source",
    "cluster",
    "model",
    "sequence",
    "mesh",
    "run",
    "measured",
    "predicted",
    "error",
    "memory GiB",
    "use",
)
_WITHIN = 0.10


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table.

    Example:
        >>> print(markdown(("a", "b"), [("1", "2")]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """
    lines = [header, ["---"] * len(header), *rows]
    first, rule, *rest = ("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([first, rule.replace(" ", ""), *rest])


def rows_table(outcomes: Sequence[Outcome]) -> str:
    """Returns every published row beside its prediction."""
    return markdown(
        _ROW_HEADER,
        [
            (
                outcome.row.source + (" [recall]" if outcome.row.is_recalled else ""),
                outcome.row.cluster,
                outcome.row.model,
                str(outcome.row.model_sizes["seq"]),
                str(outcome.row.shape),
                _run(outcome),
                _value(outcome, outcome.row.measured),
                _value(outcome, outcome.predicted),
                f"{outcome.error:+.1%}",
                _memory(outcome),
                "calibrates" if outcome.row.calibrates else "tests",
            )
            for outcome in outcomes
        ],
    )


def summary_table(outcomes: Sequence[Outcome]) -> str:
    """Returns how many rows of each source are within a tenth."""
    groups: dict[tuple[str, bool], list[float]] = {}
    for outcome in outcomes:
        key = (outcome.row.source, outcome.row.calibrates)
        groups.setdefault(key, []).append(abs(outcome.error))
    rows = []
    for (source, calibrates), errors in groups.items():
        ordered = sorted(errors)
        rows.append(
            (
                source,
                "calibrates" if calibrates else "tests",
                str(len(errors)),
                str(sum(error <= _WITHIN for error in errors)),
                f"{ordered[len(ordered) // 2]:.1%}",
                f"{ordered[-1]:.1%}",
            )
        )
    return markdown(
        ("source", "use", "rows", "within 10%", "median error", "largest"), rows
    )


def ablation_table(outcomes: Sequence[AblationOutcome]) -> str:
    """Returns MegaScale's steps beside what is predicted for them."""
    rows, before = [], None
    for outcome in outcomes:
        gains = ("", "")
        if before is not None:
            gains = (
                f"{outcome.step.measured - before.step.measured:+.1f}",
                f"{outcome.predicted - before.predicted:+.1f}",
            )
        rows.append(
            (
                outcome.step.name,
                f"{outcome.step.measured:.1f}",
                f"{outcome.predicted:.1f}",
                f"{outcome.error:+.1%}",
                *gains,
                outcome.step.note,
            )
        )
        before = outcome
    return markdown(
        ("step", "measured", "predicted", "error", "gain", "predicted gain", "as"), rows
    )


def ranking_table(ranking: Ranking, top: int) -> str:
    """Returns the fastest meshes, and why each is slower than the first."""
    best = ranking.best
    return markdown(
        ("mesh", "run", "step s", "tokens/s/GPU", "MFU", "memory GiB", "bubble", "why"),
        [
            (
                str(each.shape),
                _way(each),
                f"{each.prediction.step_s:.3g}",
                f"{each.prediction.tokens_per_s_per_device:,.0f}",
                f"{each.prediction.mfu:.1%}",
                f"{each.prediction.memory_bytes / _GIB:.1f}",
                f"{each.prediction.bubble:.1%}",
                each.compare(best),
            )
            for each in ranking.candidates[:top]
        ],
    )


def ranking_dict(ranking: Ranking, top: int) -> dict[str, Any]:
    """Returns a ranking as plain data."""
    best = ranking.best
    return {
        "num_predictions": ranking.num_predictions,
        "candidates": [
            {
                "mesh": each.shape.used(),
                "micro_batch": each.options.micro_batch,
                "schedule": each.options.schedule,
                "stages_per_rank": each.options.stages_per_rank,
                "checkpointing": each.options.checkpointing,
                "zero": each.options.zero,
                "step_s": each.prediction.step_s,
                "tokens_per_s_per_device": each.prediction.tokens_per_s_per_device,
                "mfu": each.prediction.mfu,
                "hfu": each.prediction.hfu,
                "bubble": each.prediction.bubble,
                "seconds": dict(each.prediction.seconds),
                "memory_bytes": dict(each.prediction.memory),
                "blocks": list(each.prediction.blocks),
                "why": each.compare(best),
            }
            for each in ranking.candidates[:top]
        ],
        "refused": [
            {"mesh": r.shape.used(), "code": r.code.value, "because": r.because}
            for r in ranking.refused
        ],
    }


def outcome_dict(outcome: Outcome) -> dict[str, Any]:
    """Returns a published row with its prediction as plain data."""
    row = outcome.row
    return {
        "source": row.source,
        "recalled": row.is_recalled,
        "calibrates": row.calibrates,
        "cluster": row.cluster,
        "model": row.model,
        "mesh": row.shape.used(),
        "options": dict(row.options),
        "measure": row.measure,
        "measured": row.measured,
        "predicted": outcome.predicted,
        "error": outcome.error,
        "memory_error": outcome.memory_error,
        "seconds": dict(outcome.prediction.seconds),
    }


def _way(candidate: Candidate) -> str:
    options, parts = candidate.options, []
    if candidate.shape.pipeline > 1:
        stages = options.stages_per_rank
        parts.append(
            options.schedule + (f" of {stages} stages a rank" if stages > 1 else "")
        )
    parts.append(f"micro-batch {options.micro_batch}")
    if options.checkpointing != "none":
        parts.append(f"{options.checkpointing} checkpointing")
    if candidate.shape.shard > 1:
        parts.append(f"ZeRO-{options.zero}")
    return ", ".join(parts)


def _run(outcome: Outcome) -> str:
    options = outcome.options
    parts = [f"micro-batch {options.micro_batch}"]
    if options.stages_per_rank > 1:
        parts.append(f"{options.stages_per_rank} stages a rank")
    if options.checkpointing != "none":
        parts.append(f"{options.checkpointing} checkpointing")
    return ", ".join(parts)


def _value(outcome: Outcome, value: float) -> str:
    if outcome.row.measure == "tokens_per_s":
        return f"{value:,.0f} tokens/s"
    return f"{value:.1f}% {outcome.row.measure.upper()}"


def _memory(outcome: Outcome) -> str:
    measured = outcome.row.memory_bytes
    if measured is None:
        return ""
    predicted = outcome.prediction.memory_bytes
    return f"{measured / _GIB:.1f}, predicted {predicted / _GIB:.1f}"
