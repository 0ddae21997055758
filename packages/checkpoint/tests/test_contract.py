"""The checkpointer keeps core's contract, alone and on two ranks."""

import pytest

from drivetrain_checkpoint import Checkpointer
from drivetrain_testing import check_checkpointer


def make(folder):
    return Checkpointer(folder, job="contract")


@pytest.mark.slow
def test_checkpointer_keeps_the_contract():
    check_checkpointer(make)
