"""A sheet of boxes, lines and words that becomes one SVG file of its own.

Colours come from the classes of `sheet.css`, so that the reader's light or dark mode picks
them.
"""

from __future__ import annotations

from importlib.resources import files
from xml.sax.saxutils import escape, quoteattr

_NARROW = frozenset(" .,:;'!|()[]ijlft/-")
_WIDE = frozenset("mwMW@%")


def text_width(text: str, size: float = 12.0) -> float:
    """Returns about how wide a text is, rather too much than too little.

    Args:
        text: The text.
        size: The size of its font in pixels.
    """
    return size * sum(map(_em, text))


def fit(text: str, width: float, size: float = 12.0) -> str:
    """Returns a text that is no wider, cut with an ellipsis if it must be.

    Args:
        text: The text.
        width: How wide it may be in pixels.
        size: The size of its font.

    Example:
        >>> fit("0-55,112-167", 60)
        '0-55,11…'
    """
    if text_width(text, size) <= width:
        return text
    while text and text_width(f"{text}…", size) > width:
        text = text[:-1]
    return f"{text}…"


def _em(character: str) -> float:
    """Returns an advance width of common fonts, rounded up, for a size of 1."""
    if character in _NARROW:
        return 0.36
    if character in _WIDE:
        return 0.95
    return 0.7 if character.isupper() else 0.63


class Sheet:
    """A picture that grows with what is put on it."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._right = 0.0
        self._bottom = 0.0

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str,
        *,
        radius: float = 6,
        hint: str = "",
        fill: str = "",
    ) -> None:
        """Draws a box.

        Args:
            x: Its left edge.
            y: Its upper edge.
            width: Its width.
            height: Its height.
            kind: Its class.
            radius: Of its corners.
            hint: What a reader sees who points at it.
            fill: A colour that does not depend on the mode.
        """
        self._reach(x + width, y + height)
        style = f' style="fill:{fill}"' if fill else ""
        inside = f"<title>{escape(hint)}</title>" if hint else ""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            f'rx="{radius:g}" class="{kind}"{style}>{inside}</rect>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        kind: str = "ink",
        *,
        anchor: str = "start",
        fill: str = "",
    ) -> None:
        """Writes a line.

        Args:
            x: Where it begins, or its middle or end.
            y: Its baseline.
            text: The words.
            kind: Its classes.
            anchor: What `x` is: `start`, `middle` or `end`.
            fill: A colour that does not depend on the mode.
        """
        if not text:
            return
        size = 20.0 if "title" in kind else 12.0
        if anchor == "start":
            self._reach(x + text_width(text, size), y)
        place = "" if anchor == "start" else f' text-anchor="{anchor}"'
        style = f' style="fill:{fill}"' if fill else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" class="{kind}"{place}{style}>'
            f"{escape(text)}</text>"
        )

    def wire(self, points: list[tuple[float, float]], kind: str = "wire") -> None:
        """Draws a line through points.

        Args:
            points: Where it goes.
            kind: Its class.
        """
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" class="{kind}"/>')

    def joint(self, x: float, y: float) -> None:
        """Draws a dot where lines meet.

        Args:
            x: Its middle.
            y: Its middle.
        """
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="3.5" class="joint"/>')

    def render(self, title: str, margin: float = 24) -> str:
        """Returns the file.

        Args:
            title: What the picture shows, for those who cannot see it.
            margin: Around all that was drawn.
        """
        width, height = self._right + margin, self._bottom + margin
        style = files(__package__).joinpath("sheet.css").read_text()
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
            f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
            f"aria-label={quoteattr(title)}>"
        )
        paper = '<rect width="100%" height="100%" class="paper"/>'
        lines = [head, f"<style>\n{style}</style>", paper, *self._parts, "</svg>"]
        return "\n".join(lines) + "\n"

    def _reach(self, x: float, y: float) -> None:
        self._right, self._bottom = max(self._right, x), max(self._bottom, y)
