"""Groups of some ranks, which the others know nothing of."""

from __future__ import annotations

import torch
import torch.distributed as dist

from drivetrain_core.services import new_local_group
from drivetrain_testing import run_ranks


def total(group):
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    return int(tensor)


def groups():
    rank, found = dist.get_rank(), []
    if rank < 2:
        # Of the same ranks there may be several.
        found += [total(new_local_group([0, 1])) for _ in range(2)]
    if rank > 0:
        found.append(total(new_local_group([1, 2], backend="gloo")))
    # All ranks go on together, however many each of them has made.
    found += [total(dist.new_group([0, 1, 2])) for _ in range(2)]
    return found


def test_group_of_some_ranks_stands_in_nobodys_way():
    assert run_ranks(groups, 3) == [[2, 2, 3, 3], [2, 2, 2, 3, 3], [2, 3, 3]]
