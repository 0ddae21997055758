"""Shows how far the main job is: a bar on a terminal, some lines elsewhere."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

_LINE_S = 15.0


def heading(console: Console, letter: str, text: str) -> None:
    """Writes what begins now."""
    console.print(f"\n({letter}) {text}", style="bold", markup=False)


@contextmanager
def steps_bar(console: Console, text: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a function that is told how many steps are made, and of how many.

    Args:
        console: Where it is shown.
        text: What makes the steps.
    """
    bar = Progress(
        TextColumn(f"{text}:"),
        BarColumn(),
        TextColumn("{task.completed} of {task.total} steps"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task(text, total=None)
    shown_s = time.monotonic()

    def tell(made: int, total: int) -> None:
        nonlocal shown_s
        bar.update(task, completed=made, total=total)
        if not console.is_terminal and time.monotonic() - shown_s > _LINE_S:
            shown_s = time.monotonic()
            console.print(f"{text}: {made} of {total} steps", markup=False)

    with bar:
        yield tell
