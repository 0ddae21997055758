"""Finds the fastest plan by trials in processes of their own.

The rooms, from the ground up: `process` (where trials run), `numerics` (are the numbers
still right), `report` (what is told), `cache` (earlier trials), `foresight` (what is
expected of a plan). Then, beside them: `space` (what can be tried), `surrogate` and
`descent` (what to try next), `stopping`, `anchor` and `race` (how long, and how fast that
was), `shares`, `trial_cost` and `reserve` (what time there is, and what it takes),
`trials`, `belief`, `final`, `last_check` and `decision` (which is the fastest, and by
how much), `why` (the plan), `run` (all of it, in order).
"""

from __future__ import annotations

__all__: list[str] = []
