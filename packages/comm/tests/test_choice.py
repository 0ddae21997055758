"""The choice of an all-reduce: what it takes, at the edges, and what it refuses."""

import pytest

from drivetrain_comm.selection._choice import ALGORITHMS, SCHEDULE, Choice
from drivetrain_core import DistributedError


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, SCHEDULE])
@pytest.mark.parametrize("num_streams", [1, 16])
@pytest.mark.parametrize("segment_bytes", [1 << 10, 1 << 18])
def test_edges_are_taken(algorithm, num_streams, segment_bytes):
    choice = Choice(
        algorithm=algorithm, num_streams=num_streams, segment_bytes=segment_bytes
    )
    assert str(choice).startswith(algorithm)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"num_streams": 0}, "1 to 16, got 0"),
        ({"num_streams": 17}, "1 to 16, got 17"),
        ({"segment_bytes": (1 << 10) - 1}, "1 KiB to 256 KiB, got 1023"),
        ({"segment_bytes": (1 << 18) + 1}, "1 KiB to 256 KiB, got 262145"),
        ({"algorithm": "tree"}, "no algorithm 'tree'"),
    ],
)
def test_what_lies_beyond_is_refused(wrong, says):
    with pytest.raises(DistributedError, match=says):
        Choice(**{"algorithm": "ring", **wrong})
