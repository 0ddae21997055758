"""The shapes and axes that plots are made of, as SVG text.

Foreign text goes through `clean` and nowhere else; classes, not colours, are written, so
that the page decides what they look like in the light and in the dark.
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_GOOD_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


def clean(value: object) -> str:
    r"""Returns foreign text as HTML: escaped, without characters that are none.

    Example:
        >>> clean('<b> & "c"\0')
        '&lt;b&gt; &amp; &quot;c&quot;?'
    """
    kept = "".join(c if c >= " " or c in "\n\t" else "?" for c in str(value))
    return html.escape(kept.encode("utf-8", "replace").decode("utf-8"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """A linear scale from values to places.

    Args:
        low: The value at `start`.
        high: The value at `end`.
        start: A place, in pixels.
        end: Another one; smaller than `start` on an axis that goes up.
        step: From one round value to the next.

    Example:
        >>> axis = Axis.over([0, 7], 0, 80)
        >>> axis.ticks()
        [0.0, 2.0, 4.0, 6.0, 8.0]
        >>> axis.at(2.0)
        20.0
    """

    low: float
    high: float
    start: float
    end: float
    step: float

    @classmethod
    def over(
        cls, values: Iterable[float], start: float, end: float, *, pad: float = 0.0
    ) -> Axis:
        """Returns an axis that holds all values, and ends at round numbers.

        Args:
            values: What it must hold.
            start: The place of the smallest.
            end: The place of the largest.
            pad: Room on both sides, as a part of the whole.
        """
        known = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(known), max(known)
        room = (high - low) * pad
        # All values alike still need a scale.
        if high - low < 1e-9 * max(abs(high), 1e-9):
            room = 0.1 * abs(high) or 1.0
        low, high = low - room if low > 0 else low, high + room
        step = _step(high - low)
        low = math.floor(low / step + 1e-9) * step
        high = math.ceil(high / step - 1e-9) * step
        return cls(low=low, high=high, start=start, end=end, step=step)

    def at(self, value: float) -> float:
        """Returns the place of a value; the nearest end for one beyond."""
        inside = min(max(value, self.low), self.high)
        part = (inside - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Returns round values from one end to the other."""
        first, last = round(self.low / self.step), round(self.high / self.step)
        return [float(f"{n * self.step:.12g}") for n in range(first, last + 1)]


def _step(length: float) -> float:
    """Returns the distance of some five round values over a length."""
    power = 10.0 ** math.floor(math.log10(length / 5))
    rough = length / 5 / power
    return power * next(good for good in _GOOD_STEPS if good >= rough - 1e-9)


def svg(name: str, title: str, about: str, size: tuple[float, float], body: str) -> str:
    """Returns a whole picture.

    Args:
        name: Its id, unique on the page.
        title: What it shows.
        about: What is to be seen in it, for those who do not.
        size: Width and height, in pixels.
        body: Its shapes.
    """
    width, height = size
    return (
        f'<svg role="img" viewBox="0 0 {width:g} {height:g}" '
        f'aria-labelledby="{name}-title {name}-about">'
        f'<title id="{name}-title">{clean(title)}</title>'
        f'<desc id="{name}-about">{clean(about)}</desc>{body}</svg>'
    )


def text(x: float, y: float, value: object, kind: str, anchor: str = "start") -> str:
    """Returns a text whose `anchor` (start, middle or end) is at a place."""
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{clean(value)}</text>"
    )


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Returns a straight line."""
    return (
        f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" '
        f'y2="{y2:.1f}"/>'
    )


def rect(x: float, y: float, size: tuple[float, float], kind: str) -> str:
    """Returns a bar with slightly round corners."""
    width, height = size
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="2"/>'
    )


def group(tip: str, parts: Sequence[str]) -> str:
    """Returns shapes that belong together; `tip` shows when the mouse is over them."""
    return f"<g><title>{clean(tip)}</title>{''.join(parts)}</g>"


def across(axis: Axis, top: float, bottom: float, label: str) -> str:
    """Returns a horizontal axis with its grid."""
    parts = []
    for tick in axis.ticks():
        x = axis.at(tick)
        parts.append(line(x, top, x, bottom, "grid"))
        parts.append(text(x, bottom + 16, f"{tick:,g}", "tick", "middle"))
    middle = (axis.start + axis.end) / 2
    return "".join([*parts, text(middle, bottom + 36, label, "axis", "middle")])


def upward(axis: Axis, left: float, right: float, label: str) -> str:
    """Returns a vertical axis with its grid, and its label on top."""
    parts = []
    for tick in axis.ticks():
        y = axis.at(tick)
        parts.append(line(left, y, right, y, "grid"))
        parts.append(text(left - 8, y + 4, f"{tick:,g}", "tick", "end"))
    return "".join([*parts, text(4, axis.end - 12, label, "axis")])
