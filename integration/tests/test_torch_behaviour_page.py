"""The page of torch's behaviour has the rows that the tests run."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from torch_behaviour_page import PAGE, SUBJECTS, all_rows, cell


def table():
    """Returns the cells of each row of the page, by the row's name."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            name, _, *cells = (part.strip() for part in line.strip("|").split("|"))
            found[name.replace("`", "")] = cells
    return found


def test_torch_behaviour_page_has_every_row():
    assert list(table()) == list(all_rows())


def test_torch_behaviour_page_says_refused_where_the_rows_do():
    columns = list(SUBJECTS)
    for name, row in all_rows().items():
        for subject, text in zip(columns, table()[name], strict=True):
            if subject in row.left_out:
                assert re.fullmatch(r"left out \d+", text)
            elif row.where:
                assert text == cell(row, SUBJECTS[subject])
            elif subject in row.refused:
                assert re.fullmatch(r"refused \d+", text)
            else:
                assert text == "as torch"
