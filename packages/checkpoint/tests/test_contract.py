"""The checkpointer keeps core's contract, alone and on two ranks."""

from drivetrain_checkpoint import Checkpointer
from drivetrain_testing import check_checkpointer


def make(folder):
    return Checkpointer(folder, job="contract")


def test_checkpointer_keeps_the_contract():
    check_checkpointer(make)
