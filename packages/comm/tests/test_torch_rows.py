"""Torch's own tests of distributed calls give what they give under stock Gloo."""

import pytest
from torch_rows import all_rows, run_rows, verdict_of

from drivetrain_comm.backend import _native

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        _native.missing_because() is not None, reason=str(_native.missing_because())
    ),
]

ROWS = all_rows()
KINDS = ("tuned", "no engine on rank 1")


@pytest.fixture(scope="module")
def found_by():
    return {kind: run_rows(kind, ROWS) for kind in ("stock", *KINDS)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ROWS)
def test_row_of_torch_is_that_of_stock_gloo(name, kind, found_by):
    assert (
        verdict_of(ROWS[name], found_by["stock"][name], found_by[kind][name]) == "same"
    )


def test_rows_are_many():
    assert len(ROWS) >= 200
