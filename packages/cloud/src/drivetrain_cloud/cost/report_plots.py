"""The plots of a comparison of strategies, as SVG.

No colour carries a meaning alone: lines and bars are labelled, and tables say the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_cloud.cost.trace_replay import Spent
from drivetrain_core.drawing.svg import (
    Axis,
    across,
    clean,
    group,
    line,
    rect,
    svg,
    text,
    upward,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_cloud.cost.compare import Summary
    from drivetrain_cloud.cost.input_sensitivity import Effect
    from drivetrain_cloud.cost.trace import CapacityTrace

_WIDTH, _LEFT, _TOP, _BOTTOM = 860.0, 56.0, 34.0, 44.0
_LABELS = 150.0
_ROW = 30.0
_MOST_POINTS = 2000

STYLE = """
svg .one { stroke: var(--plain); } svg .two { stroke: var(--chosen); }
svg .three { stroke: var(--best); } svg .four { stroke: var(--wrong); }
svg .five { stroke: var(--soft); }
svg .one, svg .two, svg .three, svg .four, svg .five { fill: none; stroke-width: 2; }
svg .four, svg .five { stroke-dasharray: 6 3; }
svg .whisker { stroke: var(--ink); stroke-width: 1.2; opacity: 0.5; }
svg .counts { fill: var(--chosen); } svg .repeated { fill: var(--wrong); }
svg .stalled { fill: var(--best); } svg .waiting { fill: var(--plain); }
svg .starting { fill: var(--soft); }
svg .area { fill: var(--plain); opacity: 0.3; }
"""
"""What lines and bars look like, besides the style of the project's pages."""

_LINES = ("one", "two", "three", "four", "five")
_KINDS = {
    Spent.TRAINED: "counts",
    Spent.REPEATED: "repeated",
    Spent.STALLED: "stalled",
    Spent.WAITING: "waiting",
    Spent.STARTING: "starting",
}


def plot_saving(name: str, title: str, summaries: Sequence[Summary]) -> str:
    """Returns the saving of each strategy against the number of nodes.

    Args:
        name: Of the picture, unique on the page.
        title: What it shows.
        summaries: Of one job.
    """
    sizes = sorted({one.scenario.nodes for one in summaries})
    names = list(dict.fromkeys(one.scenario.strategy.name for one in summaries))
    bottom, right = 320.0, _WIDTH - _LABELS
    values = [100 * v for one in summaries for v in (one.saving.low, one.saving.high)]
    savings = Axis.over(values, bottom, _TOP, pad=0.05)
    wide = (right - _LEFT) / len(sizes)
    places = {size: _LEFT + wide * (n + 0.5) for n, size in enumerate(sizes)}
    parts = [upward(savings, _LEFT, right, "saving against on demand, %")]
    for size, x in places.items():
        parts.append(text(x, bottom + 18, size, "tick", "middle"))
    parts.append(
        text((_LEFT + right) / 2, bottom + 38, "nodes (replicas)", "axis", "middle")
    )
    ends = []
    for number, strategy in enumerate(names):
        kind = _LINES[number % len(_LINES)]
        rows = [one for one in summaries if one.scenario.strategy.name == strategy]
        rows.sort(key=lambda one: one.scenario.nodes)
        path = ""
        for one in rows:
            # Side by side, so that each whisker is seen.
            x = places[one.scenario.nodes] + 5 * (number - len(names) / 2)
            y = savings.at(100 * one.saving.mean)
            path += f"{'L' if path else 'M'}{x:.1f} {y:.1f}"
            low, high = (savings.at(100 * v) for v in (one.saving.low, one.saving.high))
            tip = (
                f"{strategy}, {one.scenario.nodes} nodes: {one.saving.mean:.1%}, "
                f"{one.saving.low:.1%} to {one.saving.high:.1%}"
            )
            whisker = line(x, low, x, high, "whisker")
            dot = f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
            parts.append(group(tip, [whisker, dot]))
        parts.append(f'<path class="{kind}" d="{path}"/>')
        ends.append((savings.at(100 * rows[-1].saving.mean), kind, strategy))
    parts += _end_labels(ends, right)
    about = f"{len(names)} strategies, {', '.join(map(str, sizes))} nodes"
    return svg(name, title, about, (_WIDTH, bottom + _BOTTOM), "".join(parts))


def _end_labels(ends: list[tuple[float, str, str]], right: float) -> list[str]:
    parts = []
    place = -1e9
    for y, kind, label in sorted(ends):
        place = max(place + 16, y)
        parts.append(line(right + 4, place, right + 24, place, kind))
        parts.append(text(right + 28, place + 4, label, "label"))
    return parts


def plot_spent(name: str, title: str, summaries: Sequence[Summary]) -> str:
    """Returns what the paid time of nodes went to, a bar for each strategy.

    Args:
        name: Of the picture, unique on the page.
        title: What it shows.
        summaries: One for each strategy.
    """
    left, top = 160.0, 30.0
    axis = Axis(low=0.0, high=100.0, start=left, end=_WIDTH - 24, step=20.0)
    bottom = top + _ROW * len(summaries)
    parts, x = [], 8.0
    for spent, kind in _KINDS.items():
        parts += [rect(x, 4, (12, 12), kind), text(x + 16, 14, spent.value, "tick")]
        x += 36 + 7.0 * len(spent.value)
    parts.append(across(axis, top, bottom, "share of the node time that is paid, %"))
    for number, one in enumerate(summaries):
        y, begin = top + _ROW * number + 6, 0.0
        label = one.scenario.strategy.name
        parts.append(text(left - 8, y + 14, label, "label", "end"))
        for spent, kind in _KINDS.items():
            share = 100 * one.spent[spent]
            width = axis.at(begin + share) - axis.at(begin)
            tip = f"{label}: {share:.2f} % {spent.value}"
            parts.append(group(tip, [rect(axis.at(begin), y, (width, 18), kind)]))
            begin += share
    about = f"{len(summaries)} strategies"
    return svg(name, title, about, (_WIDTH, bottom + _BOTTOM), "".join(parts))


def plot_trace(name: str, trace: CapacityTrace) -> str:
    """Returns how many spot nodes there are over time.

    Args:
        name: Of the picture, unique on the page.
        trace: Shown; of a long one, its beginning.
    """
    bottom = 180.0
    changes = trace.changes[:_MOST_POINTS]
    end_s = trace.end_s
    if len(trace.changes) > _MOST_POINTS:
        end_s = trace.changes[_MOST_POINTS][0]
    days = Axis.over([0.0, end_s / 86400], _LEFT, _WIDTH - 24)
    numbers = Axis.over([0, *(n for _, n in changes)], bottom, _TOP)
    path = f"M{days.start:.1f} {numbers.at(0):.1f}"
    for time_s, available in changes:
        path += f"H{days.at(time_s / 86400):.1f}V{numbers.at(available):.1f}"
    path += f"H{days.at(end_s / 86400):.1f}V{numbers.at(0):.1f}Z"
    parts = [
        across(days, _TOP, bottom, "days"),
        upward(numbers, _LEFT, _WIDTH - 24, "spot nodes that can be had"),
        f'<path class="area" d="{path}"/>',
    ]
    about = f"{trace.source}; {trace.reclaims} are taken away"
    size = (_WIDTH, bottom + _BOTTOM)
    return svg(name, "The trace of the first run", about, size, "".join(parts))


def plot_effects(name: str, usual: float, effects: Sequence[Effect]) -> str:
    """Returns what the saving is when one input is another one.

    Args:
        name: Of the picture, unique on the page.
        usual: The saving with the usual inputs.
        effects: What was found.
    """
    inputs = list(dict.fromkeys(one.name for one in effects))
    left = 110.0
    values = [100 * one.summary.saving.mean for one in effects]
    axis = Axis.over([100 * usual, *values], left, _WIDTH - 40, pad=0.05)
    bottom = _ROW * len(inputs) + 10
    parts = [across(axis, 0, bottom, "saving against on demand, %")]
    middle = axis.at(100 * usual)
    parts.append(line(middle, 0, middle, bottom, "base"))
    for number, key in enumerate(inputs):
        y = _ROW * number + 10
        parts.append(text(left - 8, y + 14, key, "label", "end"))
        for one in (one for one in effects if one.name == key):
            x = axis.at(100 * one.summary.saving.mean)
            tip = f"{key} times {one.factor:g}: {one.summary.saving.mean:.1%}"
            bar = rect(min(x, middle), y + 3, (max(abs(x - middle), 1.0), 14), "plain")
            anchor = "start" if x >= middle else "end"
            mark = text(
                x + (4 if x >= middle else -4),
                y + 14,
                f"x{one.factor:g}",
                "tick",
                anchor,
            )
            parts.append(group(clean(tip), [bar, mark]))
    about = f"{len(inputs)} inputs, one changed at a time; usually {usual:.1%}"
    return svg(
        name,
        "Saving and assumptions",
        about,
        (_WIDTH, bottom + _BOTTOM),
        "".join(parts),
    )
