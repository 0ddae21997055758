"""Trains the plan beside the program as written, in turns on the same batches."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from drivetrain.quickstart._size import steps_of_pair, steps_of_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drivetrain.quickstart._run import Run

_FIRST_TURN = 2

Turns = list[list[float]]
"""The times of the steps of a run, turn by turn."""


def train_in_turns(
    runs: Sequence[Run],
    *,
    steps: int | None,
    limit_s: float,
    began_s: float,
    on_turn: Callable[[int, int], None],
) -> list[Turns]:
    """Trains all runs for the same number of steps; returns what their turns took.

    Each has made its first step, which compiles, and is not timed.

    Args:
        runs: They follow one order of samples.
        steps: How many; None for as many as the limit allows.
        limit_s: How long all of it may take.
        began_s: When it began.
        on_turn: Told after each turn how many steps are made, and of how many.
    """
    turns: list[Turns] = [[] for _ in runs]
    size = min(_FIRST_TURN, steps_of_turn(max(run.first_step_s for run in runs)))
    made, total = 1, steps or size + 1
    while made < total:
        turn, turn_began_s = min(size, total - made), time.monotonic()
        for at in _order(len(runs), len(turns[0])):
            before = len(runs[at].times_s)
            runs[at].train(turn)
            turns[at].append(runs[at].times_s[before:])
        made += turn
        now_s = time.monotonic()
        if steps is None:
            # A machine may become slower or faster at any time.
            all_s = (now_s - turn_began_s) / turn
            spent_s = now_s - began_s
            total = made + steps_of_pair(
                all_s, limit_s=limit_s, made=made, spent_s=spent_s
            )
        size = steps_of_turn(max(statistics.median(one[-1]) for one in turns))
        on_turn(made, total)
    for run in runs:
        run.complete(made)
    return turns


def _order(num_runs: int, turn: int) -> Sequence[int]:
    """Returns who begins: each as often as the others."""
    places = range(num_runs)
    return places if turn % 2 == 0 else places[::-1]
