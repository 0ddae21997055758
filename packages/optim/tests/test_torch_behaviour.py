"""Each optimizer does what torch asks of every optimizer, or refuses it as torch does."""

import pytest
from torch_behaviour import SUBJECTS, all_rows, ways

ROWS = [row for row in all_rows().values() if not row.where]


def cells():
    """Returns each row with each subject and way, marked as it is."""
    return [
        pytest.param(
            row,
            subject,
            way,
            id=f"{row.name}-{subject.name}-{way.name}",
            marks=[pytest.mark.slow] if row.slow else [],
        )
        for row in ROWS
        for subject in SUBJECTS.values()
        for way in ways()[: 1 if row.once else None]
    ]


@pytest.mark.parametrize(("row", "subject", "way"), cells())
def test_torch_behaviour_is_as_torch_or_refused(row, subject, way):
    verdict = row.verdict(subject, way)
    refused = subject.name in row.refused
    assert verdict.startswith("refused: ") if refused else verdict == "as torch"
    assert not refused or row.as_in_torch, "say which optimizers of torch refuse it"


def test_torch_behaviour_has_the_rows_of_torch():
    names = {name.partition(":")[0] for name in all_rows()}
    assert len(names) >= 40
