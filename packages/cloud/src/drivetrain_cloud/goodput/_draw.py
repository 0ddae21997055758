"""Plots of what was simulated, with matplotlib."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.goodput._ledger import Loss
from drivetrain_core import MissingLibraryError, ProgramError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from drivetrain_cloud.goodput._summary import Summary
    from drivetrain_cloud.goodput._sweep import Point

_KINDS = frozenset({".png", ".svg", ".pdf"})
_NEEDS_PLOT = 'plots need matplotlib, which is not installed: pip install "drivetrain-cloud[plot]"'
_COLOURS = dict(
    zip(Loss, ("C3", "C1", "C5", "C7", "C0", "C4", "C2", "C8"), strict=True)
)


def check_plot_path(path: str | os.PathLike[str]) -> Path:
    """Returns a path that a plot can be written to.

    Args:
        path: A file that ends in .png, .svg or .pdf.

    Raises:
        ProgramError: It ends in something else, or its folder does not exist.
        MissingLibraryError: matplotlib is not installed.
    """
    file = Path(path)
    if file.suffix.lower() not in _KINDS:
        message = f"a plot's file must end in {', '.join(sorted(_KINDS))}, got {file}"
        raise ProgramError(message)
    if not file.parent.is_dir():
        message = f"a plot's folder must exist, got {file}"
        raise ProgramError(message)
    _figure(1.0)
    return file


def plot_losses(path: str | os.PathLike[str], found: Mapping[str, Summary]) -> None:
    """Draws what time was lost to, a bar for each of several jobs.

    Args:
        path: The file.
        found: What each job came to, by name.

    Raises:
        MissingLibraryError: matplotlib is not installed.
    """
    figure = _figure(1.2 + 0.5 * len(found))
    axes = figure.add_subplot()
    names = list(found)
    left = [0.0] * len(names)
    for loss in Loss:
        shares = [found[name].lost_shares[loss] * 100 for name in names]
        if not any(shares):
            continue
        axes.barh(names, shares, left=left, label=loss.value, color=_COLOURS[loss])
        left = [a + b for a, b in zip(left, shares, strict=True)]
    for at, name in enumerate(names):
        axes.text(left[at], at, f" {found[name].goodput:.1%} counts", va="center")
    axes.set_xlim(0, max(left) * 1.3 or 1.0)
    axes.invert_yaxis()
    axes.set_xlabel("time lost, %")
    axes.legend(fontsize="small", loc="best")
    _save(figure, path)


def plot_sensitivity(
    path: str | os.PathLike[str],
    found: Mapping[str, Sequence[float]],
    *,
    factors: Sequence[float],
    usual: float,
) -> None:
    """Draws how the goodput follows each input, those first that matter most.

    Args:
        path: The file.
        found: The goodput by name, for each factor.
        factors: By which the inputs were multiplied.
        usual: The goodput with a factor of 1.

    Raises:
        MissingLibraryError: matplotlib is not installed.
    """
    figure = _figure(1.2 + 0.3 * len(found))
    axes = figure.add_subplot()
    for at, shares in enumerate(found.values()):
        axes.plot(
            [min(shares) * 100, max(shares) * 100], [at, at], color="0.8", zorder=0
        )
        for order, (factor, share) in enumerate(zip(factors, shares, strict=True)):
            axes.plot(
                share * 100,
                at,
                "o",
                color=f"C{order}",
                label=f"x {factor:g}" if at == 0 else None,
            )
    axes.axvline(usual * 100, color="0.3", linestyle=":")
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.set_xlabel("time that counts, %")
    axes.legend(fontsize="small", loc="lower left")
    _save(figure, path)


def plot_sweep(path: str | os.PathLike[str], points: Sequence[Point]) -> None:
    """Draws a sweep: a line over one input, or a heat map over two.

    Args:
        path: The file.
        points: The sweep, with one or two inputs.

    Raises:
        ProgramError: It has another number of inputs.
        MissingLibraryError: matplotlib is not installed.
    """
    names = list(points[0].inputs) if points else []
    if len(names) not in (1, 2):
        message = f"a plot needs a sweep of one or two inputs, got {len(names)}"
        raise ProgramError(message)
    figure = _figure(4.0)
    axes = figure.add_subplot()
    if len(names) == 1:
        _draw_line(axes, points, names[0])
    else:
        _draw_map(figure, axes, points, names)
    _save(figure, path)


def _draw_line(axes: Any, points: Sequence[Point], name: str) -> None:
    values = [point.inputs[name] for point in points]
    axes.plot(values, [point.summary.goodput * 100 for point in points], "o-")
    axes.fill_between(
        values,
        [point.summary.lowest * 100 for point in points],
        [point.summary.highest * 100 for point in points],
        alpha=0.2,
    )
    axes.set_xlabel(name)
    axes.set_ylabel("time that counts, %")
    if min(values) > 0:
        axes.set_xscale("log")
    axes.grid(alpha=0.3)


def _draw_map(
    figure: Any, axes: Any, points: Sequence[Point], names: Sequence[str]
) -> None:
    first, second = names
    columns = sorted({point.inputs[first] for point in points})
    rows = sorted({point.inputs[second] for point in points})
    shares = [[math.nan] * len(columns) for _ in rows]
    for point in points:
        row, column = (
            rows.index(point.inputs[second]),
            columns.index(point.inputs[first]),
        )
        shares[row][column] = point.summary.goodput * 100
    image = axes.imshow(shares, aspect="auto", origin="lower", cmap="viridis")
    middle = (max(map(max, shares)) + min(map(min, shares))) / 2
    for row, line in enumerate(shares):
        for column, share in enumerate(line):
            colour = "black" if share > middle else "white"
            axes.text(
                column, row, f"{share:.1f}", ha="center", va="center", color=colour
            )
    axes.set_xticks(range(len(columns)), [f"{one:g}" for one in columns])
    axes.set_yticks(range(len(rows)), [f"{one:g}" for one in rows])
    axes.set_xlabel(first)
    axes.set_ylabel(second)
    figure.colorbar(image, label="time that counts, %")


def _figure(height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingLibraryError(_NEEDS_PLOT) from error
    return Figure(figsize=(8.0, height), layout="constrained")


def _save(figure: Any, path: str | os.PathLike[str]) -> None:
    import matplotlib as mpl

    # The same numbers make the same file.
    settings: Any = {"svg.hashsalt": "drivetrain", "svg.fonttype": "none"}
    metadata = {"Date": None} if Path(path).suffix.lower() == ".svg" else None
    with mpl.rc_context(settings):
        figure.savefig(path, metadata=metadata, dpi=120)
