"""Nobody waits for an all-reduce: it ends all the same, and leaves nothing behind."""

import inspect
import os
import re
import tempfile
import time
import weakref
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from drivetrain_comm.backend import _native
from drivetrain_testing import run_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        _native.missing_because() is not None, reason=str(_native.missing_because())
    ),
]

MINUTE = timedelta(seconds=60)


def is_freed(group):
    """Waits until threads that have just used a group have let go of it."""
    until_s = time.monotonic() + 10
    while group() is not None and time.monotonic() < until_s:
        time.sleep(0.01)
    return group() is None


def barrier_after():
    vectors = [torch.ones(4 << 20) for _ in range(4)]
    for vector in vectors:
        dist.all_reduce(vector, async_op=True)
    dist.barrier()
    return [vector[-1].item() for vector in vectors]


def barrier_without_a_wait():
    """Rank 0 begins both, and sends what lets rank 1 begin them."""
    ones = torch.ones(4, 3).t()
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), 0)
    dist.all_reduce(ones, async_op=True)
    barrier = dist.barrier(async_op=True)
    if dist.get_rank() == 0:
        dist.send(torch.ones(1), 1)
    barrier.wait()
    return ones.sum().item(), barrier.is_completed()


def barrier_of_a_rank_that_has_left():
    group = dist.new_group(timeout=timedelta(seconds=20))
    dist.all_reduce(torch.ones(3), group=group)
    said = "is lost|losed by peer|reset by peer"
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(3), group=group, async_op=True)
        with pytest.raises(RuntimeError) as error:
            dist.barrier(group)
        said = str(error.value)
    dist.destroy_process_group(group)
    return re.search("is lost|losed by peer|reset by peer", said) is not None


def destroyed_after():
    group = dist.new_group()
    vectors = [torch.ones(1000), torch.ones(4, 3).t(), torch.ones(1 << 20)]
    if dist.get_rank() == 1:
        time.sleep(0.5)
    for vector in vectors:
        dist.all_reduce(vector, group=group, async_op=True)
    dist.destroy_process_group(group)
    return [vector.sum().item() / vector.numel() for vector in vectors]


def freed_after_futures():
    group = dist.new_group()
    future = dist.all_reduce(torch.ones(3), group=group, async_op=True).get_future()
    future.then(lambda done: done.value()).wait()
    dist.all_reduce(torch.ones(4, 3).t(), group=group, async_op=True)
    gone = weakref.ref(group)
    dist.destroy_process_group(group)
    del group
    return is_freed(gone)


def empty_when_others_have_left():
    group = dist.new_group()
    dist.all_reduce(torch.ones(3), group=group)
    if dist.get_rank() == 0:
        dist.recv(torch.zeros(1), 1)
    dist.all_reduce(torch.ones(0), group=group)
    dist.destroy_process_group(group)
    if dist.get_rank() == 1:
        dist.send(torch.ones(1), 0)
    return "no error"


def meeting_of_a_late_rank():
    """How often torch's store warns on rank 1, while rank 0 is late."""
    group = dist.new_group()
    if dist.get_rank() == 0:
        time.sleep(2)
    with tempfile.NamedTemporaryFile() as file:
        errors = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            dist.all_reduce(torch.ones(3), group=group)
        finally:
            os.dup2(errors, 2)
            os.close(errors)
        said = Path(file.name).read_text()
    dist.destroy_process_group(group)
    return said.count("timed out") <= 1


PARTS = {
    "barrier": (barrier_after, [2] * 4),
    "barrier without a wait": (barrier_without_a_wait, (24, True)),
    "barrier, one has left": (barrier_of_a_rank_that_has_left, True),
    "destroyed": (destroyed_after, [2] * 3),
    "freed": (freed_after_futures, True),
    "empty": (empty_when_others_have_left, "no error"),
    "late": (meeting_of_a_late_rank, True),
}


def all_parts():
    import drivetrain_comm

    # `run_ranks` keeps all groups; here they are to be freed.
    helper = inspect.unwrap(distributed_c10d._new_process_group_helper)
    distributed_c10d._new_process_group_helper = helper
    drivetrain_comm.enable()
    dist.init_process_group("gloo", timeout=MINUTE)
    dist.all_reduce(torch.ones(1))
    found = {name: part() for name, (part, _) in PARTS.items()}
    world = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    # Torch's functions may have taken it as a default of theirs.
    found["world"] = is_freed(world)
    return found


@pytest.fixture(scope="module")
def found():
    return run_ranks(all_parts, 2, process_group=False)


@pytest.mark.parametrize("part", [*PARTS, "world"])
def test_work_that_nobody_waits_for(part, found):
    expected = PARTS[part][1] if part in PARTS else True
    assert [one[part] for one in found] == [expected] * 2
