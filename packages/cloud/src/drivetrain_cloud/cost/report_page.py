"""A comparison of strategies as one HTML page that needs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_cloud.cost.report import (
    REFERENCE,
    assumptions,
    detail_rows,
    most_saving,
    range_text,
    saving_rows,
    target_rows,
)
from drivetrain_cloud.cost.report_plots import (
    STYLE,
    plot_effects,
    plot_saving,
    plot_spent,
    plot_trace,
)
from drivetrain_core.drawing import page_style
from drivetrain_core.drawing.svg import clean
from drivetrain_core.services import write_whole

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from drivetrain_cloud.cost.report import StrategyComparison

# A page that holds foreign text may run nothing and load nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_page(comparison: StrategyComparison, path: str | os.PathLike[str]) -> None:
    """Writes the page, whole or not at all.

    Args:
        comparison: Shown on it.
        path: Where to.

    Raises:
        OSError: It cannot be written there.
    """
    write_whole(path, render_page(comparison))


def render_page(comparison: StrategyComparison) -> str:
    """Returns the page of a comparison as HTML."""
    spot, on_demand, most = most_saving(comparison)
    lead = (
        f"A spot node costs {spot:g} and one on demand {on_demand:g} "
        f"{comparison.summaries[0].scenario.prices.currency} per hour, so that none can "
        f"save more than {most:.1%}. {REFERENCE}"
    )
    parts = [
        "<h1>Strategies for spot nodes</h1>",
        f'<p class="lead">{clean(lead)}</p>',
    ]
    largest = comparison.sizes[-1]
    for number, job in enumerate(comparison.jobs):
        picture = plot_saving(
            f"saving-{number}", f"Saving of {job}", comparison.of(job)
        )
        parts.append(
            _section(f"Saving: {job}", picture + _table(*saving_rows(comparison, job)))
        )
        rows = comparison.of(job, largest)
        picture = plot_spent(f"spent-{number}", f"Where the time of {job} went", rows)
        parts.append(
            _section(
                f"Where the time went: {job}, {largest} nodes",
                picture + _table(*detail_rows(rows)),
            )
        )
    if comparison.effects:
        usual = comparison.summaries[-1]
        title = (
            f"Sensitivity: {usual.scenario.profile.name}, {usual.scenario.nodes} nodes, "
            f"{usual.scenario.strategy.name}"
        )
        picture = plot_effects("effects", usual.saving.mean, comparison.effects)
        effects = _table(
            ("input", "times", "saving"),
            (
                (one.name, f"{one.factor:g}", range_text(one.summary.saving))
                for one in comparison.effects
            ),
        )
        parts.append(_section(title, picture + effects))
    if comparison.targets:
        rows_of_targets = _table(*target_rows(comparison, comparison.targets))
        parts.append(_section("What spot nodes may cost", rows_of_targets))
    scenario = comparison.summaries[-1].scenario
    parts.append(_section("CapacityTrace", plot_trace("trace", scenario.trace(0))))
    rows_of = assumptions(comparison)
    parts.append(_section("Assumptions", _table(("what", "value", "source"), rows_of)))
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<title>Drivetrain: strategies for spot nodes</title>"
        f"<style>{page_style.STYLE}{STYLE}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{clean(title)}</h2>{body}</section>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f'<th scope="col">{clean(column)}</th>' for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{clean(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
