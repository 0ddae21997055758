"""Draws the table of distances from each GPU to each GPU and network card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.topology._affinity import distance
from drivetrain_fabric.topology._svg import fit, text_width

if TYPE_CHECKING:
    from drivetrain_fabric.topology._graph import Topology
    from drivetrain_fabric.topology._svg import Sheet

_CELL_HEIGHT = 26.0
_LEAST_WIDTH, _MOST_WIDTH = 48.0, 88.0
_MEANING = (
    ("NV#", "through # NVLinks"),
    ("PIX", "through one PCIe switch"),
    ("PXB", "through several switches"),
    ("PHB", "through a host bridge"),
    ("NODE", "through host bridges of a NUMA node"),
    ("SYS", "from one NUMA node to another"),
)


def draw_distances(sheet: Sheet, topology: Topology, x: float, y: float) -> float:
    """Draws the table, and returns where the next thing may begin.

    Args:
        sheet: Where to.
        topology: The host, with one GPU at least.
        x: The left edge.
        y: The upper edge.
    """
    gpus = [gpu.label for gpu in topology.gpus]
    others = [*gpus, *(nic.name for nic in topology.nics)]
    widest = max(text_width(name, 11) + 12 for name in others)
    wide = min(max(widest, _LEAST_WIDTH), _MOST_WIDTH)
    sheet.text(x, y + 12, "Distances", "ink head")
    top, left = y + 48, x + 56
    for j, name in enumerate(others):
        middle = left + (j + 0.5) * wide
        shown = fit(name, wide - 6, 11)
        sheet.text(middle, top - 8, shown, "faint small", anchor="middle")
    met = set()
    for i, gpu in enumerate(gpus):
        row = top + i * _CELL_HEIGHT
        sheet.text(left - 10, row + 17, gpu, "faint small", anchor="end")
        for j, name in enumerate(others):
            far = distance(topology, gpu, name)
            met.add(_kind(far))
            _draw_cell(sheet, far, left + j * wide, row, wide, f"{gpu} - {name}: {far}")
    bottom = top + len(gpus) * _CELL_HEIGHT
    _draw_legend(sheet, x, bottom + 16, met)
    return bottom + 16 + _CELL_HEIGHT


def _draw_cell(
    sheet: Sheet, far: str, x: float, y: float, wide: float, hint: str
) -> None:
    height = _CELL_HEIGHT - 2
    sheet.box(x + 1, y + 1, wide - 2, height, _kind(far), radius=3, hint=hint)
    if far != "X":
        sheet.text(x + wide / 2, y + 18, far, "ink small", anchor="middle")


def _draw_legend(sheet: Sheet, x: float, y: float, met: set[str]) -> None:
    for name, meaning in _MEANING:
        if _kind(name) not in met:
            continue
        _draw_cell(sheet, name, x, y, _LEAST_WIDTH, "")
        sheet.text(x + _LEAST_WIDTH + 6, y + 18, meaning, "faint small")
        x += _LEAST_WIDTH + 24 + text_width(meaning, 11)


def _kind(far: str) -> str:
    order = ["NV", "PIX", "PXB", "PHB", "NODE", "SYS"]
    name = "NV" if far.startswith("NV") else far
    return "self" if far == "X" else f"near{order.index(name)}"
