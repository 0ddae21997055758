"""The closing table of both halves, for a terminal and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table
from rich.text import Text

from drivetrain.quickstart._peers import read_peers

if TYPE_CHECKING:
    from collections.abc import Mapping

_RUN_ROWS = (
    ("per_s", "", "{:,.0f}"),
    ("step_ms", "step, ms (median)", "{:,.1f}"),
    ("bits_per_byte", "held-out bits per byte", "{:.3f}"),
    ("last_loss", "loss at the end", "{:.4f}"),
    ("peak_mib", "peak memory, MiB", "{:,.0f}"),
    ("mfu", "share of the measured peak (MFU)", "{:.1%}"),
)


class Grid(NamedTuple):
    """A table as texts.

    Attributes:
        title: What it shows.
        columns: The heads; the first one is that of the names.
        rows: As many texts each.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def fast_grid(result: Mapping[str, Any]) -> Grid:
    """Returns the first half: the plan beside the program as written.

    Args:
        result: Of the main job.
    """
    pair, search = result["pair"], result["search"]
    runs = pair["rows"]
    rows = []
    for key, label, form in _RUN_ROWS:
        values = [run[key] for run in runs]
        if None in values:
            continue
        cells = [form.format(value) for value in values]
        if len(runs) == 2:
            cells.append(f"{values[1] / values[0]:.2f}x")
        rows.append((label or pair["unit"], *cells))
    rows.append(("tried by the search", _tried(search), *("",) * (len(runs) * 2 - 2)))
    if pair["speed_up"] is not None:
        speed = pair["speed_up"]
        text = f"{speed['ratio']:.2f}x +- {speed['half_width']:.2f}"
        rows.append(("speed-up, 95% interval", "", "", text))
    columns = ("", *(run["name"] for run in runs))
    columns += ("ratio",) if len(runs) == 2 else ()
    title = f"fast: {pair['num_steps']} steps, the same batches in turns"
    if len(runs) == 1:
        title = (
            "fast: no plan was shown to be faster than the program as written; "
            f"{pair['num_steps']} steps"
        )
    return Grid(title, columns, [row[: len(columns)] for row in rows])


def _tried(search: Mapping[str, Any]) -> str:
    number, best = search["num_trials"], search["best_tried"]
    tried = "1 trial" if number == 1 else f"{number} trials"
    if best is None or not search["is_baseline"]:
        return tried
    return f"{tried}, the fastest other plan {best:.2f}x in its own"


def kill_grid(result: Mapping[str, Any]) -> Grid:
    """Returns the second half: what the death of a worker has cost.

    Args:
        result: Of the main job.
    """
    job = result["job"]
    peers = read_peers()
    rows: list[tuple[str, ...]] = [
        ("killed", _killed(job)),
        ("pause", _pause(job)),
        ("steps lost", f"{job['steps_lost']} (made again: {job['steps_again']})"),
        ("samples lost, repeated", f"{job['samples_lost']}, {job['samples_repeated']}"),
        (
            "losses from the undisturbed run's",
            _gap(job),
        ),
        ("last checkpoint on disk", _checkpoint(job)),
    ]
    if job["reserve_ready_s"] is not None:
        ready = f"was ready {job['reserve_ready_s']:.1f} s before it was needed"
        rows.append(("the worker in reserve", ready))
    rows += [(f"not taken: {what}", instead) for what, instead in job["left_out"]]
    rows += [(f"pause under {one.name}*", str(one)) for one in peers.pauses]
    rows.append(("*not measured here", f"{peers.date}, {peers.machine}; {peers.job}"))
    title = (
        f"hard to kill: {job['num_steps']} of these steps under `drivetrain elastic run`, "
        f"{job['num_workers']} workers, {job['num_standbys']} in reserve"
    )
    return Grid(title, ("", "measured"), rows)


def _killed(job: Mapping[str, Any]) -> str:
    kill = job["kill"]
    if kill is None:
        return "nobody"
    return (
        f"rank {kill['rank']} (pid {kill['pid']}), SIGKILL in the middle of step "
        f"{kill['step']}"
    )


def _pause(job: Mapping[str, Any]) -> str:
    if job["pause_s"] is None:
        return "no step was made after the kill"
    usual = (
        "" if job["step_s"] is None else f", which usually takes {job['step_s']:.2f} s"
    )
    return f"{job['pause_s']:.2f} s, the next step within it{usual}"


def _gap(job: Mapping[str, Any]) -> str:
    return (
        f"{job['gap_after']:.1e} apart in the median and {job['gap_most_after']:.1e} at "
        f"most since the kill; before it {job['gap_before']:.1e} at most"
    )


def _checkpoint(job: Mapping[str, Any]) -> str:
    step = job["checkpoint"]
    return "none" if step is None else f"step {step} of {job['num_steps']}"


def to_rich(grid: Grid) -> Table:
    """Returns a table for a terminal."""
    table = Table(title=grid.title)
    numeric = len(grid.columns) > 2
    for place, column in enumerate(grid.columns):
        justify = "right" if place and numeric else "left"
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in grid.rows:
        table.add_row(*map(Text, row))
    return table


def to_markdown(grid: Grid) -> str:
    r"""Returns a table in Markdown, under its title.

    Example:
        >>> print(to_markdown(Grid("speed", ("", "a"), [("step", "1 | 2")])))
        **speed**
        <BLANKLINE>
        | | a |
        |---|---|
        | step | 1 \| 2 |
    """
    lines = [_line(grid.columns), "|" + "---|" * len(grid.columns)]
    lines += [_line(row) for row in grid.rows]
    return "\n".join([f"**{grid.title}**", "", *lines])


def _line(cells: tuple[str, ...]) -> str:
    inside = " | ".join(cell.replace("|", "\\|") for cell in cells)
    return f"| {inside} |".replace("|  |", "| |")
