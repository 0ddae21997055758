"""The table of what stays the same is whole, holds no wrong cell, and can be made again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from same_program import ALONE, PAGE, ROWS, TWO_RANKS, cells, judged, on_two_ranks


def rows_of(page):
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    return [[mark.strip() for mark in line.strip("|").split("|")] for line in lines]


def test_the_page_has_every_cell_and_each_is_the_same_or_refused():
    page = PAGE.read_text(encoding="utf-8")
    table = rows_of(page)
    for columns in (ALONE, TWO_RANKS):
        start = next(i for i, row in enumerate(table) if row[1:] == list(columns))
        found = table[start + 1 : start + 1 + len(ROWS)]
        assert [row[0] for row in found] == list(ROWS)
        marks = [mark for row in found for mark in row[1:]]
        assert all(mark == "=" or f"\n{mark}. " in page for mark in marks)
        assert marks.count("=") >= 0.75 * len(marks)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["auxiliary loss that blocks keep", "tied weights", "loss that is a sum"]
)
def test_rows_come_out_as_the_page_says(name):
    columns = {c: ALONE[c] for c in ("micro_batch", "bf16_params", "kernels")}
    ranked = {c: TWO_RANKS[c] for c in ("ddp", "mesh tensor", "mesh pipeline")}
    found = cells([name], columns) | on_two_ranks(name, ranked)
    table = rows_of(PAGE.read_text(encoding="utf-8"))
    for group in (ALONE, TWO_RANKS):
        start = next(i for i, row in enumerate(table) if row[1:] == list(group))
        row = next(row for row in table[start:] if row[0] == name)
        said = dict(zip(group, row[1:], strict=True))
        for column in said.keys() & {**columns, **ranked}.keys():
            verdict = found[name, column]
            assert (said[column] == "=") is (verdict == "same"), (column, verdict)
            assert not verdict.startswith("WRONG")


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("same", "same"),
        ("refused: PlanError: blocks differ", "refused: PlanError: blocks differ"),
        (
            "refused: planning it failed: NameError: x",
            "WRONG: NameError, refused: planning it failed: NameError: x",
        ),
    ],
)
def test_a_refusal_by_what_python_raised_is_none_of_ours(said, found):
    assert judged(said) == found
