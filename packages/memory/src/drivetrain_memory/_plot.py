"""Pictures of a trace and of an address space, as PNG or as HTML."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from drivetrain_memory._errors import MemoryUseError
from drivetrain_memory._limits import MOST_NUMBER, require_integer
from drivetrain_memory.trace._format import Operation

if TYPE_CHECKING:
    import os

    from drivetrain_memory.trace._format import Trace

_GIB = 2**30
_COLORS = {
    "active_allocated": "#2b6cb0",
    "active_awaiting_free": "#d69e2e",
    "inactive": "#e2e8f0",
}
_LABELS = {
    "active_allocated": "live",
    "active_awaiting_free": "freed, still used by another stream",
    "inactive": "free",
}
_MOST_SEGMENTS = 60


def plot_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Draws how much is live over a trace, by stream.

    Args:
        trace: What was asked for.
        path: A .png or .html file to write.

    Raises:
        MemoryUseError: The file would be another kind, there is no Matplotlib, or the
            trace frees what is not live.
    """
    figure, axes = _figure(1)
    curves, steps = _live_by_stream(trace)
    bottom = np.zeros(len(trace.events))
    for stream, curve in sorted(curves.items()):
        axes.fill_between(
            range(len(curve)),
            bottom / _GIB,
            (bottom + curve) / _GIB,
            step="post",
            label=f"stream {stream}",
            # What is live for few events would not be seen without a line.
            linewidth=0.7,
            edgecolor=f"C{stream % 10}",
            facecolor=f"C{stream % 10}",
        )
        bottom = bottom + curve
    for step in steps:
        axes.axvline(step, color="#718096", linewidth=0.6, linestyle=":")
    axes.set_xlabel("event (a dotted line begins a step)")
    axes.set_ylabel("live, GiB")
    # A name may hold dollar signs, which are no formula.
    axes.set_title(
        f"{trace.name}: {trace.peak_live_bytes / _GIB:.2f} GiB at the peak",
        parse_math=False,
    )
    axes.set_xlim(0, max(len(trace.events) - 1, 1))
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left")
    _save(figure, path, trace.name)


def plot_snapshot(snapshot: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Draws the blocks of each segment of a snapshot, by address.

    Args:
        snapshot: As `drivetrain_memory.snapshot()` or
            `drivetrain_memory.trace.load_snapshot` returns it.
        path: A .png or .html file to write.

    Raises:
        MemoryUseError: The file would be another kind, there is no Matplotlib, or the
            segments are not as those of a snapshot.
    """
    try:
        figure = _drawn(snapshot)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        message = (
            "the segments are not as those of a snapshot: "
            f"{type(error).__name__} {error}"
        )
        raise MemoryUseError(message) from None
    _save(figure, path, "address space")


def _drawn(snapshot: dict[str, Any]) -> Any:
    """Returns the figure of a snapshot."""
    _require_sizes(snapshot["segments"])
    segments = sorted(snapshot["segments"], key=lambda one: -one["total_size"])
    shown = segments[:_MOST_SEGMENTS]
    figure, axes = _figure(0.25 * len(shown) / 5 + 0.4)
    from matplotlib.patches import Patch

    for row, segment in enumerate(shown):
        at = segment["address"]
        for block in segment["blocks"]:
            address = block.get("address", at)
            at = address + block["size"]
            axes.broken_barh(
                [((address - segment["address"]) / _GIB, block["size"] / _GIB)],
                (row - 0.4, 0.8),
                facecolors=_COLORS.get(block["state"], _COLORS["inactive"]),
                edgecolor="white",
                linewidth=0.2,
            )
    axes.set_yticks(range(len(shown)))
    axes.set_yticklabels(
        [f"GPU {one['device']}, stream {one['stream']:#x}" for one in shown], fontsize=7
    )
    axes.invert_yaxis()
    axes.set_xlabel("within the run of addresses, GiB")
    total = sum(one["total_size"] for one in segments)
    live = sum(one["allocated_size"] for one in segments)
    left_out = len(segments) - len(shown)
    more = f"; {left_out} smaller runs are not shown" if left_out else ""
    axes.set_title(
        f"{live / _GIB:.2f} GiB live of {total / _GIB:.2f} GiB reserved{more}"
    )
    handles = [Patch(color=_COLORS[kind], label=_LABELS[kind]) for kind in _COLORS]
    axes.legend(handles=handles, loc="lower right")
    return figure


def _require_sizes(segments: list[dict[str, Any]]) -> None:
    for segment in segments:
        for name in ("address", "total_size", "allocated_size"):
            require_integer(f"a segment's {name}", segment[name], 0, MOST_NUMBER)
        for block in segment["blocks"]:
            require_integer("a block's size", block["size"], 0, MOST_NUMBER)
            at = block.get("address", 0)
            require_integer("a block's address", at, 0, MOST_NUMBER)


def _live_by_stream(trace: Trace) -> tuple[dict[int, Any], list[int]]:
    """Returns what is live after each event, by stream, and where steps begin."""
    count = len(trace.events)
    changes: dict[int, Any] = {}
    blocks: dict[int, tuple[int, int]] = {}
    steps = []
    for index, event in enumerate(trace.events):
        operation = int(event["operation"])
        if operation == Operation.ALLOCATE:
            stream, size = int(event["stream"]), int(event["size"])
            blocks[int(event["id"])] = (stream, size)
            changes.setdefault(stream, np.zeros(count))[index] += size
        elif operation == Operation.FREE:
            name = int(event["id"])
            if name not in blocks:
                message = f"event {index} of the trace frees the unknown block {name}"
                raise MemoryUseError(message)
            stream, size = blocks.pop(name)
            changes[stream][index] -= size
        elif operation == Operation.STEP:
            steps.append(index)
    return {stream: np.cumsum(change) for stream, change in changes.items()}, steps


def _figure(tall: float) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        message = "pictures need Matplotlib: pip install drivetrain-memory[plot]"
        raise MemoryUseError(message) from None
    figure = Figure(figsize=(11, max(2.0, 5 * tall)), layout="constrained")
    return figure, figure.subplots()


def _save(figure: Any, path: str | os.PathLike[str], title: str) -> None:
    target = Path(path)
    if target.suffix not in (".png", ".html"):
        message = f"pictures are .png or .html files, not {target.name}"
        raise MemoryUseError(message)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=130)
    if target.suffix == ".png":
        target.write_bytes(drawn.getvalue())
        return
    image = base64.b64encode(drawn.getvalue()).decode()
    name = html.escape(title)
    target.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title>'
        f'<img alt="{name}" style="max-width:100%" '
        f'src="data:image/png;base64,{image}"></html>\n'
    )
