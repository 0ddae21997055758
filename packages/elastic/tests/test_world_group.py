"""Groups that are aborted wake everybody, and make way for the next."""

import os
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from drivetrain_core.services import TorchProcessGroupFactory
from drivetrain_elastic._membership._world_group import WorldGroup
from drivetrain_testing import run_ranks


def store():
    return dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )


def world(epoch, rank, size):
    return WorldGroup(
        TorchProcessGroupFactory("gloo"),
        dist.PrefixStore(str(epoch), store()),
        epoch=epoch,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )


def one_stays_away():
    """Rank 3 enters no all-reduce; all others break off, each from a thread."""
    rank = int(os.environ["RANK"])
    first = world(1, rank, 4)
    vector = torch.ones(1000)
    first.group.allreduce([vector]).wait()
    if rank == 3:
        time.sleep(1.0)
        return "away", 0.0, 0.0
    begun_s = time.monotonic()
    threading.Timer(0.3, first.abort).start()
    told = ""
    try:
        first.group.allreduce([vector]).wait()
    except RuntimeError as error:
        told = str(error)
    waited_s = time.monotonic() - begun_s
    # The next world has the three that are left; the old one goes meanwhile.
    second = world(2, rank, 3)
    first.close()
    vector = torch.ones(1000)
    second.group.allreduce([vector]).wait()
    total = vector[0].item()
    second.group.barrier().wait()
    second.close()
    return told, waited_s, total


@pytest.mark.slow
def test_all_are_woken_and_go_on_without_the_one_that_does_nothing():
    *stayed, away = run_ranks(one_stays_away, 4, process_group=False, timeout_s=50)
    assert away[0] == "away"
    for told, waited_s, total in stayed:
        assert told
        # Not the time-out, which is a minute.
        assert waited_s < 20
        assert total == 3


def num_descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def many_worlds(num):
    rank = int(os.environ["RANK"])
    before = num_descriptors()
    for epoch in range(num):
        one = world(epoch, rank, 2)
        vector = torch.ones(4)
        one.group.allreduce([vector]).wait()
        one.group.barrier().wait()
        one.close()
        del one
    return num_descriptors() - before


@pytest.mark.slow
def test_worlds_leave_no_descriptors_behind():
    few = run_ranks(many_worlds, 2, 3, process_group=False)
    many = run_ranks(many_worlds, 2, 20, process_group=False)
    assert max(many) <= max(few) + 8
