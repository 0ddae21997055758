"""Draws measured links: two maps of ranks, one of speed and one of delay."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from drivetrain_fabric.topology._cluster import check_hosts, find_flaws, find_hosts
from drivetrain_fabric.topology._svg import Sheet, fit, text_width
from drivetrain_fabric.topology._units import amount, scale

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_fabric.topology._matrix import LinkMatrix

_MARGIN = 24.0
_MAP_WIDTH = 560.0
_LEAST_CELL, _MOST_CELL, _CELL_WITH_TEXT = 6.0, 56.0, 34.0
_BETWEEN = 72.0
_STEPS = 40
_MOST_FLAWS = 12
# From pale to strong; each is interpolated in red, green and blue.
_BLUES = ((0xE6, 0xEF, 0xF8), (0x6F, 0xA8, 0xDC), (0x17, 0x4A, 0x7E))
_REDS = ((0xFB, 0xEE, 0xE2), (0xE8, 0x9A, 0x6B), (0x8C, 0x2D, 0x19))

_Colours = tuple[tuple[int, int, int], ...]


def links_svg(
    matrix: LinkMatrix,
    *,
    name: str = "Links between ranks",
    hosts: Iterable[Sequence[int]] | None = None,
) -> str:
    """Returns a picture of measured links as an SVG file, for light and dark readers.

    Ranks stand by hosts, with a frame around each. Links that are worse than others of
    their kind have a red one.

    Args:
        matrix: What was measured.
        name: The title.
        hosts: The ranks of each host; by default what `find_hosts` finds.

    Raises:
        TopologyError: `hosts` do not fit.

    Example:
        >>> from drivetrain_fabric.topology import LinkMatrix
        >>> links_svg(LinkMatrix(delay_s=((0.0,),), bytes_per_s=((0.0,),)))[:4]
        '<svg'
    """
    groups = [sorted(host) for host in (find_hosts(matrix) if hosts is None else hosts)]
    rows = check_hosts(groups, matrix)
    flaws = find_flaws(matrix, hosts=groups)
    sheet = Sheet()
    sheet.text(_MARGIN, _MARGIN + 20, name, "ink title")
    words = f"{len(matrix)} ranks in {len(rows)} groups by distance"
    sheet.text(_MARGIN, _MARGIN + 42, words, "faint")
    room = _MAP_WIDTH / len(matrix)
    cell = float(int(min(max(room, _LEAST_CELL), _MOST_CELL)))
    bad = {flaw.ranks for flaw in flaws}
    bad |= {flaw.ranks[::-1] for flaw in flaws if flaw.is_mutual}
    x, top = _MARGIN + 60, _MARGIN + 108
    maps = (
        ("Speed", "B/s", matrix.bytes_per_s, _BLUES),
        ("Delay, one way", "s", matrix.delay_s, _REDS),
    )
    for title, unit, values, colours in maps:
        _draw_map(
            sheet, matrix, rows, bad, (title, unit, colours), values, x, top, cell
        )
        x += cell * len(matrix) + _BETWEEN
    y = top + cell * len(matrix) + 76
    for flaw in flaws[:_MOST_FLAWS]:
        sheet.text(_MARGIN, y, flaw.message, "warn")
        y += 18
    if len(flaws) > _MOST_FLAWS:
        sheet.text(_MARGIN, y, f"and {len(flaws) - _MOST_FLAWS} more", "faint")
    return sheet.render(f"{name}: {words}", _MARGIN)


def _draw_map(
    sheet: Sheet,
    matrix: LinkMatrix,
    hosts: list[list[int]],
    bad: set[tuple[int, ...]],
    style: tuple[str, str, _Colours],
    values: tuple[tuple[float, ...], ...],
    x: float,
    y: float,
    cell: float,
) -> None:
    title, unit, colours = style
    found = [values[a][b] for a, b in matrix.pairs()] or [1.0]
    least, most = min(found), max(found)
    size, prefix = scale(most)
    sheet.text(x, y - 34, f"{title} ({prefix}{unit})", "ink head")
    order = [row for host in hosts for row in host]
    has_text = cell >= _CELL_WITH_TEXT
    every = max(1, math.ceil(20 / cell))
    for i, a in enumerate(order):
        if i % every == 0:
            label = str(matrix.ranks[a])
            middle = (i + 0.5) * cell
            sheet.text(x - 8, y + middle + 4, label, "faint small", anchor="end")
            sheet.text(x + middle, y - 8, label, "faint small", anchor="middle")
        for j, b in enumerate(order):
            at = (x + j * cell, y + i * cell)
            if a == b:
                sheet.box(*at, cell, cell, "self", radius=0)
                continue
            share = _share(values[a][b], least, most)
            ends = matrix.ranks[a], matrix.ranks[b]
            shown = f"{values[a][b] / size:.3g}"
            hint = f"rank {ends[0]} to rank {ends[1]}: {shown} {prefix}{unit}"
            fill = _colour(share, colours)
            sheet.box(*at, cell, cell, "cell", radius=0, hint=hint, fill=fill)
            if has_text:
                ink = "#ffffff" if share > 0.55 else "#22262e"
                words = fit(shown, cell - 2, 11)
                place = (at[0] + cell / 2, at[1] + cell / 2 + 4)
                sheet.text(*place, words, "small", anchor="middle", fill=ink)
    _draw_frames(sheet, matrix, hosts, order, bad, x, y, cell)
    _draw_scale(sheet, x, y + cell * len(order) + 20, least, most, style)


def _draw_frames(
    sheet: Sheet,
    matrix: LinkMatrix,
    hosts: list[list[int]],
    order: list[int],
    bad: set[tuple[int, ...]],
    x: float,
    y: float,
    cell: float,
) -> None:
    at = 0.0
    for host in hosts:
        wide = len(host) * cell
        sheet.box(x + at, y + at, wide, wide, "frame", radius=2)
        at += wide
    for i, a in enumerate(order):
        for j, b in enumerate(order):
            if (matrix.ranks[a], matrix.ranks[b]) in bad:
                left, top = x + j * cell + 1, y + i * cell + 1
                sheet.box(left, top, cell - 2, cell - 2, "flaw", radius=2)
        if (matrix.ranks[a],) in bad:
            wide = len(order) * cell
            sheet.box(x + 1, y + i * cell + 1, wide - 2, cell - 2, "flaw", radius=2)


def _draw_scale(
    sheet: Sheet,
    x: float,
    y: float,
    least: float,
    most: float,
    style: tuple[str, str, _Colours],
) -> None:
    """Draws which colour is how much."""
    _, unit, colours = style
    left = amount(least, unit)
    sheet.text(x, y + 10, left, "faint small")
    x += text_width(left, 11) + 8
    for i in range(_STEPS):
        fill = _colour(i / (_STEPS - 1), colours)
        # Boxes overlap, so that no seam shows between them.
        sheet.box(x + i * 4, y, 5, 12, "cell", radius=0, fill=fill)
    sheet.text(x + _STEPS * 4 + 9, y + 10, amount(most, unit), "faint small")


def _share(value: float, least: float, most: float) -> float:
    """Returns where a value stands between the least and the most, by factors."""
    if value <= 0 or least <= 0 or most <= least:
        return 0.5 if most <= least else float(value >= most)
    return math.log(value / least) / math.log(most / least)


def _colour(share: float, colours: _Colours) -> str:
    at = share * (len(colours) - 1)
    i = min(int(at), len(colours) - 2)
    pairs = zip(colours[i], colours[i + 1], strict=True)
    mixed = (round(a + (b - a) * (at - i)) for a, b in pairs)
    return "#" + "".join(f"{part:02x}" for part in mixed)
