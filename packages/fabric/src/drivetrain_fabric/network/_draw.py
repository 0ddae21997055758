"""Pictures: bars of a comparison, and lines of what an incast does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.topology._svg import Sheet, text_width
from drivetrain_fabric.topology._units import amount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain_fabric.network._clos import FloatArray
    from drivetrain_fabric.network._congestion import CongestionTrace
    from drivetrain_fabric.network._report import Measure

_KINDS = {"random": "switch", "given": "bar", "packed": "nic", "advised": "gpu"}
_BAR, _GAP, _HEIGHT = 30, 26, 200
_LEFT, _TOP = 24, 96
_LINES = ("wire", "flaw", "nvwire", "frame")
_WIDTH, _PANEL = 640, 130


def comparison_svg(measures: Sequence[Measure], title: str) -> str:
    """Returns an SVG file: the time of each setting, in bars.

    Args:
        measures: What `compare` returned.
        title: What was compared.
    """
    sheet = Sheet()
    sheet.text(_LEFT, 40, title, "ink title")
    placements = list(dict.fromkeys(m.placement for m in measures))
    ratios = list(dict.fromkeys(m.uplink_ratio for m in measures))
    pairs = list(dict.fromkeys(m.num_queue_pairs for m in measures))
    by_setting = {(m.uplink_ratio, m.num_queue_pairs, m.placement): m for m in measures}
    longest = max(m.seconds for m in measures) or 1.0
    x = float(_LEFT)
    for name in placements:
        sheet.box(x, 56, 12, 12, _KINDS[name], radius=2)
        sheet.text(x + 18, 66, name)
        x += 100
    floor = _TOP + _HEIGHT + 16
    x = float(_LEFT)
    for ratio in ratios:
        start = x
        for num in pairs:
            for name in placements:
                measure = by_setting[ratio, num, name]
                height = max(measure.seconds / longest * _HEIGHT, 1)
                hint = (
                    f"{name}, {num} queue pairs: {amount(measure.seconds, 's')}, "
                    f"{measure.slowdown:.2f} x the ideal"
                )
                sheet.box(
                    x, floor - height, _BAR, height, _KINDS[name], radius=2, hint=hint
                )
                label = f"{measure.slowdown:.2f}"
                place = x + _BAR / 2, floor - height - 5
                sheet.text(*place, label, "faint small", anchor="middle")
                x += _BAR
            middle = x - len(placements) * _BAR / 2
            label = f"{num} QP{'s' if num > 1 else ''}"
            sheet.text(middle, floor + 18, label, anchor="middle")
            x += _GAP
        end = x - _GAP
        sheet.wire([(start, floor), (end, floor)])
        label = f"a port up carries {ratio:g} network card{'s' if ratio != 1 else ''}"
        sheet.text((start + end) / 2, floor + 40, label, "ink name", anchor="middle")
        x += _GAP
    note = (
        f"Bars are times, the longest {amount(longest, 's')}; numbers are times over "
        "the ideal of the network cards."
    )
    sheet.text(_LEFT, floor + 68, note, "faint small")
    return sheet.render(title)


def congestion_svg(traces: Mapping[str, CongestionTrace], title: str) -> str:
    """Returns an SVG file: what the last flow gets, the longest queue, and pauses.

    Args:
        traces: Runs of one scenario, up to four, by what they are called.
        title: What they show.
    """
    sheet = Sheet()
    sheet.text(_LEFT, 40, title, "ink title")
    kinds = dict(zip(traces, _LINES, strict=False))
    x = float(_LEFT)
    for name, kind in kinds.items():
        sheet.wire([(x, 62), (x + 22, 62)], kind)
        sheet.text(x + 28, 66, name)
        x += 60 + text_width(name)
    panels = {
        ("last flow", "b/s"): {
            n: t.goodput_bits_per_s[:, -1] for n, t in traces.items()
        },
        ("longest queue", "B"): {
            n: t.queue_bytes.max(axis=1) for n, t in traces.items()
        },
        ("links paused", ""): {n: t.paused.mean(axis=1) for n, t in traces.items()},
    }
    top = float(_TOP)
    for (what, unit), lines in panels.items():
        most = max(float(line.max()) for line in lines.values()) or 1.0
        scale = amount(most, unit) if unit else f"{100 * most:.0f}%"
        sheet.text(_LEFT, top, f"{what}, up to {scale}", "ink name")
        floor = top + _PANEL
        sheet.box(_LEFT, top + 8, _WIDTH, _PANEL - 8, "panel", radius=0)
        for name, line in lines.items():
            sheet.wire(_points(line / most, floor), kinds[name])
        top = floor + 32
    seconds = next(iter(traces.values())).time_s[-1]
    sheet.text(_LEFT, top - 8, f"Time from 0 to {amount(seconds, 's')}.", "faint small")
    return sheet.render(title)


def _points(heights: FloatArray, floor: float) -> list[tuple[float, float]]:
    step = _WIDTH / max(len(heights) - 1, 1)
    return [
        (round(_LEFT + i * step, 1), round(floor - float(height) * (_PANEL - 16), 1))
        for i, height in enumerate(heights)
    ]
