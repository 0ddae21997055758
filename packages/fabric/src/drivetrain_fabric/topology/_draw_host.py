"""Draws a host: its NUMA nodes side by side, the PCI tree in each, NVLinks below."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_fabric.topology._affinity import nvlinks_of
from drivetrain_fabric.topology._draw_distances import draw_distances
from drivetrain_fabric.topology._parts import Gpu
from drivetrain_fabric.topology._svg import Sheet, fit, text_width
from drivetrain_fabric.topology._tree import Branch, numa_tree
from drivetrain_fabric.topology._words import (
    device_name,
    device_words,
    node_words,
    summary_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drivetrain_fabric.topology._graph import Topology
    from drivetrain_fabric.topology._tree import Device, NumaBranch

_MARGIN = 24.0
_PAD = 16.0
_BOX_WIDTH, _BOX_HEIGHT, _HEAD_HEIGHT = 160.0, 60.0, 40.0
_GAP, _INDENT, _GUTTER = 10.0, 18.0, 24.0
_BAR_HEIGHT = 46.0
_LANE = 26.0
_BOLD = 13.0  # what is bold is as wide as what is larger
# More lines than this between GPUs are a tangle: the table of distances has them.
_MOST_LANES = 8


@dataclass(frozen=True, slots=True)
class _Row:
    """One box of a column, `depth` switches below the top."""

    what: Branch | Device
    depth: int


@dataclass(frozen=True, slots=True)
class _Rail:
    """Where the NVLinks of a GPU leave its box, and the gutter they go down."""

    gutter: float
    box_right: float
    y: float


def host_svg(topology: Topology) -> str:
    """Returns a picture of a host as an SVG file, for light and dark readers.

    Args:
        topology: The host.

    Example:
        >>> from drivetrain_fabric.topology import NumaNode, Topology
        >>> host = Topology(name="a", numa_nodes=(NumaNode(index=0),))
        >>> host_svg(host).startswith("<svg")
        True
    """
    sheet = Sheet()
    sheet.text(_MARGIN, _MARGIN + 20, topology.name, "ink title")
    sheet.text(_MARGIN, _MARGIN + 42, summary_words(topology), "faint")
    top = _MARGIN + 60
    panels = [(branch, _columns(branch)) for branch in numa_tree(topology)]
    tallest = max(
        (_height(column) for _, columns in panels for column in columns), default=0.0
    )
    height = _BAR_HEIGHT + 3 * _PAD + _GAP + max(tallest, _HEAD_HEIGHT)
    rails: dict[str, _Rail] = {}
    x = _MARGIN
    for branch, columns in panels:
        x += _draw_panel(sheet, topology, branch, columns, x, top, height, rails) + _PAD
    bottom = _draw_nvlinks(sheet, topology, rails, x - _PAD, top + height)
    if topology.gpus:
        bottom = draw_distances(sheet, topology, _MARGIN, bottom + 2 * _PAD)
    for i, note in enumerate(topology.notes):
        sheet.text(_MARGIN, bottom + 28 + 18 * i, f"Note: {note}", "warn")
    return sheet.render(f"{topology.name}: {summary_words(topology)}", _MARGIN)


def _columns(branch: NumaBranch) -> list[list[_Row]]:
    """Returns a column for each switch at the top, and one for all that has none."""
    columns = [
        list(_rows(switch, 0)) for root in branch.roots for switch in root.switches
    ]
    single = [_Row(d, 1) for root in branch.roots for d in root.devices]
    single += [_Row(device, 1) for device in branch.devices]
    most = max([4, *map(len, columns)])
    return [*columns, *(single[i : i + most] for i in range(0, len(single), most))]


def _rows(branch: Branch, depth: int) -> Iterable[_Row]:
    yield _Row(branch, depth)
    for device in branch.devices:
        yield _Row(device, depth + 1)
    for switch in branch.switches:
        yield from _rows(switch, depth + 1)


def _row_height(row: _Row) -> float:
    return _HEAD_HEIGHT if isinstance(row.what, Branch) else _BOX_HEIGHT


def _height(column: list[_Row]) -> float:
    return sum(_row_height(row) + _GAP for row in column) - _GAP


def _width(column: list[_Row]) -> float:
    return _BOX_WIDTH + _INDENT * max(row.depth for row in column) + _GUTTER


def _draw_panel(
    sheet: Sheet,
    topology: Topology,
    branch: NumaBranch,
    columns: list[list[_Row]],
    x: float,
    y: float,
    height: float,
    rails: dict[str, _Rail],
) -> float:
    """Draws a NUMA node, and returns how wide it is."""
    name, words = node_words(branch.node)
    inner = max(sum(map(_width, columns)), text_width(name, 13) + 2 * _PAD, 240.0)
    width = inner + 2 * _PAD - _GUTTER / 2
    sheet.box(x, y, width, height, "panel", radius=10)
    bar_width = width - 2 * _PAD
    sheet.box(x + _PAD, y + _PAD, bar_width, _BAR_HEIGHT, "bar", hint=words)
    middle = x + width / 2
    sheet.text(middle, y + _PAD + 20, name, "ink head", anchor="middle")
    shown = fit(words, bar_width - 16, 11)
    sheet.text(middle, y + _PAD + 36, shown, "faint small", anchor="middle")
    at, under = x + _PAD, y + _PAD + _BAR_HEIGHT
    for column in columns:
        _draw_column(sheet, topology, column, at, under, rails)
        at += _width(column)
    if not columns:
        nothing, below = "no GPU and no network card", under + _GAP + _PAD + 20
        sheet.text(middle, below, nothing, "faint", anchor="middle")
    return width


def _draw_column(
    sheet: Sheet,
    topology: Topology,
    column: list[_Row],
    x: float,
    bar_bottom: float,
    rails: dict[str, _Rail],
) -> None:
    """Draws boxes below each other; a trunk on the left shows what hangs on what."""
    right = x + _width(column) - _GUTTER
    trunk_x = [x + _INDENT / 2 + depth * _INDENT for depth in range(len(column) + 1)]
    trunk_y = {0: bar_bottom}
    y = bar_bottom + _GAP + _PAD
    for row in column:
        left = x + row.depth * _INDENT
        tall = _row_height(row)
        if row.depth == 0:
            sheet.wire([(trunk_x[0], bar_bottom), (trunk_x[0], y)])
        else:
            start = (trunk_x[row.depth - 1], trunk_y[row.depth - 1])
            sheet.wire([start, (start[0], y + tall / 2), (left, y + tall / 2)])
        if isinstance(row.what, Branch):
            trunk_y[row.depth] = y + tall
            _draw_switch(sheet, row.what, left, y, right - left)
        else:
            _draw_device(sheet, topology, row.what, left, y, right - left)
            if isinstance(row.what, Gpu) and nvlinks_of(topology, row.what.label):
                rail = _Rail(right + _GUTTER / 2, right, y + tall / 2)
                rails[row.what.label] = rail
        y += tall + _GAP


def _draw_switch(sheet: Sheet, switch: Branch, x: float, y: float, wide: float) -> None:
    sheet.box(x, y, wide, _HEAD_HEIGHT, "switch", hint=f"PCIe switch {switch.name}")
    sheet.text(x + 12, y + 17, "PCIe switch", "ink name")
    sheet.text(x + 12, y + 32, fit(switch.name, wide - 24, 11), "faint small")


def _draw_device(
    sheet: Sheet, topology: Topology, device: Device, x: float, y: float, wide: float
) -> None:
    name, model = device_name(device)
    lines = device_words(topology, device)
    kind = "gpu" if isinstance(device, Gpu) else "nic" if device.is_up else "off"
    where = device.slot.address if device.slot is not None else "no PCI device"
    hint = "\n".join([f"{name} {model}".strip(), *filter(None, lines), where])
    sheet.box(x, y, wide, _BOX_HEIGHT, kind, hint=hint)
    title = fit(name, wide - 20)
    sheet.text(x + 10, y + 18, title, "ink name")
    after = text_width(title, _BOLD) + 18
    if wide - after - 10 > 30:
        model = fit(model, wide - after - 10, 11)
        sheet.text(x + wide - 10, y + 18, model, "faint small", anchor="end")
    for i, line in enumerate(filter(None, lines)):
        is_bad = i == 0 and kind == "gpu" and _is_narrow(device)
        shade = "warn small" if is_bad else "faint small"
        sheet.text(x + 10, y + 35 + 16 * i, fit(line, wide - 20, 11), shade)


def _is_narrow(device: Device) -> bool:
    link = device.slot.link if device.slot is not None else None
    return link is not None and link.is_narrow


def _draw_nvlinks(
    sheet: Sheet,
    topology: Topology,
    rails: dict[str, _Rail],
    right: float,
    panel_bottom: float,
) -> float:
    """Draws what NVLinks lead to, and returns where the next thing may begin."""
    if topology.nvswitches:
        return _draw_nvswitches(sheet, topology, rails, right, panel_bottom)
    pairs = [
        (rails[link.gpu], rails[link.peer], link.count)
        for link in topology.nvlinks
        if link.gpu in rails and link.peer in rails
    ]
    if not pairs or len(pairs) > _MOST_LANES:
        return panel_bottom
    bottom = panel_bottom
    for a, b, count in pairs:
        if a.gutter == b.gutter:
            deep = max(a.y, b.y)
        else:
            bottom += _LANE
            deep = bottom
            text = f"{count} NVLinks"
            # Beside the left corner, where no line to another GPU goes down.
            left = min(a.gutter, b.gutter)
            sheet.text(left + 8, deep - 6, text, "faint small")
            for rail in (a, b):
                sheet.joint(rail.gutter, deep)
        points = [(a.box_right, a.y), (a.gutter, a.y), (a.gutter, deep)]
        points += [(b.gutter, deep), (b.gutter, b.y), (b.box_right, b.y)]
        sheet.wire(points, "nvwire")
    return bottom


def _draw_nvswitches(
    sheet: Sheet,
    topology: Topology,
    rails: dict[str, _Rail],
    right: float,
    panel_bottom: float,
) -> float:
    y = panel_bottom + _LANE
    count = len(topology.nvswitches)
    room = right - _MARGIN - 2 * _PAD
    wide = (room - _PAD * (count - 1)) / count
    sheet.box(_MARGIN, y, right - _MARGIN, _HEAD_HEIGHT + 2 * _GAP, "panel", radius=10)
    for rail in rails.values():
        points = [(rail.box_right, rail.y), (rail.gutter, rail.y), (rail.gutter, y)]
        sheet.wire(points, "nvwire")
        sheet.joint(rail.gutter, y)
    for i, switch in enumerate(topology.nvswitches):
        x = _MARGIN + _PAD + i * (wide + _PAD)
        place = switch.address or "not visible from here"
        sheet.box(x, y + _GAP, wide, _HEAD_HEIGHT, "nvswitch", hint=place)
        middle = x + wide / 2
        name = fit(f"NVSwitch {switch.index}", wide - 8)
        sheet.text(middle, y + _GAP + 17, name, "ink name", anchor="middle")
        shown = fit(place, wide - 8, 11)
        sheet.text(middle, y + _GAP + 32, shown, "faint small", anchor="middle")
    return y + _HEAD_HEIGHT + 2 * _GAP
