"""What says that a node will be taken away."""

from __future__ import annotations

import math

import pytest

from drivetrain_core.services import CapacityNotice


@pytest.mark.parametrize(
    ("fields", "problem"),
    [({"deadline_s": math.nan}, "nan"), ({"node": ""}, "name the node")],
)
def test_notice_is_checked(fields, problem):
    with pytest.raises(ValueError, match=problem):
        CapacityNotice(**{"deadline_s": 1.0, "node": "a", "reason": "", **fields})


def test_remaining_time_never_goes_below_zero():
    notice = CapacityNotice(deadline_s=10.0, node="a", reason="")
    assert notice.remaining_s(now_s=4.0) == 6.0
    assert notice.remaining_s(now_s=11.0) == 0.0
    assert not notice.withdrawn
    assert CapacityNotice(deadline_s=math.inf, node="a", reason="").withdrawn
