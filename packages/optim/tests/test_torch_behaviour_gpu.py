"""The rows of torch's behaviour on a GPU: those that need one, and all the others there."""

import pytest
from torch_behaviour import SUBJECTS, all_rows, ways


def cells(where):
    """Returns the rows that need a marker, with each subject and way on a GPU."""
    return [
        pytest.param(row, subject, way, id=f"{row.name}-{subject.name}-{way.name}")
        for row in all_rows().values()
        if row.where == where and not row.name.lower().startswith("compile")
        for subject in SUBJECTS.values()
        if subject.name not in row.left_out
        for way in ways("cuda")[: 1 if row.once else None]
    ]


def check(row, subject, way):
    """Asserts the verdict."""
    refused = subject.name in row.refused
    verdict = row.verdict(subject, way)
    assert verdict.startswith("refused: ") if refused else verdict == "as torch"


@pytest.mark.gpu
@pytest.mark.parametrize(("row", "subject", "way"), cells("gpu"))
def test_torch_behaviour_gpu_is_as_torch_or_refused(row, subject, way):
    check(row, subject, way)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(("row", "subject", "way"), cells(""))
def test_torch_behaviour_gpu_is_that_of_the_cpu(row, subject, way):
    check(row, subject, way)


@pytest.mark.multigpu
@pytest.mark.parametrize(("row", "subject", "way"), cells("multigpu"))
def test_torch_behaviour_gpu_holds_for_two(row, subject, way):
    check(row, subject, way)
