"""Tables, as all command lines print them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["aligned", "print_table"]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows as lines of text, the cells of a column under each other.

    Args:
        rows: Of as many cells each.

    Example:
        >>> aligned([["OP", "HERE"], ["rope", "yes"], ["moe", ""]])
        ['OP    HERE', 'rope  yes', 'moe']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def print_table(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Prints rows under the first one; columns after the first are aligned right.

    Args:
        title: What stands above.
        rows: The names of the columns, then the rows.

    Example:
        >>> print_table("links", [["link", "Gbit/s"], ["0 - 1", "100"]])
        links
        ┏━━━━━━━┳━━━━━━━━┓
        ┃ link  ┃ Gbit/s ┃
        ┡━━━━━━━╇━━━━━━━━┩
        │ 0 - 1 │    100 │
        └───────┴────────┘
    """
    # It is a tenth of a second, which a table of plain text does not need.
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for at, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if at else "left")
    for row in rows[1:]:
        table.add_row(*row)
    Console(file=sys.stdout).print(table)
