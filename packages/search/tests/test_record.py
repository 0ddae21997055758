"""One trial as plain data."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_core import Choice, Code, DrivetrainError, Measurement
from drivetrain_search import TrialRecord

TIMES = st.floats(1e-9, 1e9)
SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
CHOICES = st.builds(Choice, st.text(max_size=5), st.dictionaries(st.text(), SCALARS))
MEASUREMENTS = st.builds(
    Measurement,
    step_times_s=st.lists(TIMES, min_size=1).map(tuple),
    samples_per_step=st.integers(1, 10**9),
    tokens_per_step=st.none() | st.integers(1, 10**12),
    peak_memory_bytes=st.integers(0, 1 << 50),
    data_share=st.floats(0, 1),
    flops_per_step=st.none() | st.integers(0, 10**20),
    setup_s=TIMES,
)
RECORDS = st.builds(
    TrialRecord,
    name=st.text(),
    choices=st.lists(CHOICES, max_size=3).map(tuple),
    seconds=TIMES,
    measurement=st.none() | MEASUREMENTS,
    code=st.sampled_from(["", *Code]),
    because=st.text(),
    log=st.text(),
    guard=st.none() | st.dictionaries(st.text(), SCALARS),
    started_s=TIMES,
    cached=st.booleans(),
    rung=st.integers(0, 3),
)


@given(RECORDS)
def test_record_is_rebuilt_exactly(record):
    data = json.loads(json.dumps(record.to_dict()))
    assert TrialRecord.from_dict(data) == record


@given(RECORDS, st.data())
def test_record_with_a_part_missing_is_refused_or_read(record, data):
    whole = record.to_dict()
    key = data.draw(st.sampled_from(sorted(whole)))
    del whole[key]
    if key in ("guard", "measurement"):
        assert getattr(TrialRecord.from_dict(whole), key) is None
    else:
        with pytest.raises(DrivetrainError, match=key):
            TrialRecord.from_dict(whole)


@pytest.mark.parametrize("data", [None, [], 3, "record", {}], ids=repr)
def test_data_that_is_no_record_is_refused(data):
    with pytest.raises(ValueError, match="trial record"):
        TrialRecord.from_dict(data)
