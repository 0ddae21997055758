"""Rows of the workers of a job, in a table that fits into a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import rich.box
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult

_SLOW = 1.3


class _Column(NamedTuple):
    """A column.

    Attributes:
        justify: On which side.
        rank: Columns of a higher one are left out first; 0 for never.
    """

    justify: JustifyMethod
    rank: int


_COLUMNS = {
    "node": _Column("left", 0),
    "worker": _Column("left", 1),
    "rank": _Column("right", 0),
    "step": _Column("right", 0),
    "s/step": _Column("right", 3),
    "does": _Column("left", 4),
    "slower": _Column("right", 5),
    "CPU": _Column("right", 6),
    "memory": _Column("right", 7),
    "alerts": _Column("left", 2),
}


class FittingTable:
    """A table without the columns for which there is no room; a renderable of rich.

    Args:
        rows: By the names of columns; what is missing is empty.

    Example:
        >>> from rich.console import Console
        >>> row = {"node": Text("a"), "step": Text("512"), "memory": Text("40%")}
        >>> with (console := Console(width=20)).capture() as shown:
        ...     console.print(FittingTable([row]))
        >>> shown.get().split()
        ['node', 'rank', 'step', '──────────────────', 'a', '512']
    """

    def __init__(self, rows: Sequence[Mapping[str, Text]]) -> None:
        self._rows = rows

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """Yields the table, as wide as there is room."""
        names = list(_COLUMNS)
        for gone in sorted(_COLUMNS, key=self._comes_off_at):
            table = self._table(names)
            needed = Measurement.get(console, options.update(max_width=10_000), table)
            if needed.maximum <= options.max_width or not _COLUMNS[gone].rank:
                break
            names.remove(gone)
        yield self._table(names)

    def _comes_off_at(self, name: str) -> tuple[bool, bool, int]:
        """Returns what columns are sorted by that are left out: at first empty ones."""
        has_any = any(row.get(name) for row in self._rows)
        return not _COLUMNS[name].rank, has_any, -_COLUMNS[name].rank

    def _table(self, names: Sequence[str]) -> Table:
        table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
        for name in names:
            # What does not fit even so goes on in the next line, and is not cut.
            table.add_column(name, justify=_COLUMNS[name].justify, overflow="fold")
        for row in self._rows:
            table.add_row(*(row.get(name, Text()) for name in names))
        return table


def rows_of(node: Any) -> Iterator[dict[str, Text]]:
    """Yields a row for each worker of a node, the first with what is of the node.

    Args:
        node: A `NodeStatus`.
    """
    hardware = node.hardware
    row = {
        "node": Text(node.node),
        "CPU": Text(f"{hardware.cpu_share:.0%}"),
        "alerts": Text(", ".join(one.kind for one in node.alerts), "red"),
    }
    if hardware.memory_total:
        share = hardware.memory_used / hardware.memory_total
        row["memory"] = Text(f"{share:.0%}")
    for one in node.workers:
        style = "red" if one.slowness >= _SLOW else ""
        yield row | {
            "worker": Text(one.name.rsplit("/", 1)[-1]),
            "rank": Text(str(one.rank) if one.rank >= 0 else one.status),
            "step": Text(str(one.step)),
            "s/step": Text(f"{one.step_s:.3f}" if one.step_s else ""),
            "does": Text(f"{one.phase} {one.phase_s:.1f} s" if one.phase else ""),
            "slower": Text(f"{one.slowness:.2f}x" if one.slowness else "", style),
        }
        row = {}
    if row:
        yield row
