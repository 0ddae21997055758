"""What the ranks that save together tell each other, and over which process group."""

import pytest
import torch
import torch.distributed as dist

from drivetrain_checkpoint._rank_group import RankGroup
from drivetrain_testing import run_ranks


@pytest.mark.parametrize("types", [["cuda"], ["cpu", "cuda"]], ids=" ".join)
def test_ranks_tell_each_other_nothing_over_a_group_of_devices_alone(
    monkeypatch, types
):
    class Group:
        _device_types = list(map(torch.device, types))

    whole, made = Group(), []

    def new_group(ranks, *, backend, use_local_synchronization):
        assert (backend, use_local_synchronization) == ("gloo", True)
        made.append(ranks)
        return "of hosts"

    def gather(values, value, group):
        values[:] = [value, group]

    def broadcast(values, *, src, group):
        values[:] = [(src, group)]

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(dist, "get_global_rank", lambda group, rank: 4 + rank)
    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(dist, "all_gather_object", gather)
    monkeypatch.setattr(dist, "broadcast_object_list", broadcast)
    ranks = RankGroup(whole)
    group = whole if "cpu" in types else "of hosts"
    for _ in range(2):
        assert ranks.all_gather("a") == ["a", group]
        assert ranks.broadcast("a", 1) == (5, group)
    # It is made once.
    assert made == ([] if "cpu" in types else [[4, 5]])


def in_halves():
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = dist.get_rank() // 2
    ranks = RankGroup(halves[mine])
    told = [ranks.all_gather(dist.get_rank())]
    if mine == 0:
        # The other half takes no part in it.
        one = ranks.subgroup((1,))
        told.append(ranks.rank == 1 and dist.get_world_size(one))
    return told


def test_ranks_of_a_part_make_groups_without_the_others():
    found = run_ranks(in_halves, 4)
    assert found == [[[0, 1], False], [[0, 1], 1], [[2, 3]], [[2, 3]]]
