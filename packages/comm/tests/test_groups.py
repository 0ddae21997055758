"""Plans of groups, which are pure, and groups of real ranks."""

import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_comm.groups import create_groups, lazy_gloo, plan_groups
from drivetrain_core import DistributedError
from drivetrain_testing import RankError, run_ranks

MESHES = st.dictionaries(
    st.sampled_from(["pipeline", "data", "tensor", "expert"]),
    st.integers(1, 5),
    min_size=1,
)


def test_plan_of_a_mesh():
    plan = plan_groups(12, {"data": 3, "tensor": 4}, together=[("tensor", "data")])
    assert plan.names == ("data", "tensor", "data+tensor")
    ranks = [group.ranks for group in plan.groups_of(6)]
    assert ranks == [(2, 6, 10), (4, 5, 6, 7), tuple(range(12))]
    assert [group.index for group in plan.groups_of(6)] == [2, 1, 0]


@pytest.mark.slow
@given(MESHES, st.data())
def test_plan_has_each_rank_once_in_the_groups_of_a_name(dims, data):
    world_size = math.prod(dims.values())
    names = list(dims)
    pairs = [(a, b) for a in names for b in names if a < b]
    together = data.draw(st.lists(st.sampled_from(pairs), max_size=2)) if pairs else []
    plan = plan_groups(world_size, dims, together=together)
    every = list(plan.all_groups())
    for name in plan.names:
        of_name = [group for group in every if group.name == name]
        assert sorted(r for g in of_name for r in g.ranks) == list(range(world_size))
        assert [group.index for group in of_name] == list(range(len(of_name)))
        assert all(list(group.ranks) == sorted(group.ranks) for group in of_name)
    for rank in range(world_size):
        mine = [group for group in every if rank in group.ranks]
        assert sorted(mine, key=str) == sorted(plan.groups_of(rank), key=str)
        assert tuple(group.name for group in plan.groups_of(rank)) == plan.names


@given(MESHES, st.randoms(use_true_random=False))
def test_plan_cannot_deadlock_if_making_a_group_waits_for_all_its_ranks(dims, random):
    world_size = math.prod(dims.values())
    plan = plan_groups(world_size, dims)
    at = dict.fromkeys(range(world_size), 0)
    waiting = {}
    ready = list(at)
    while ready:
        rank = ready.pop(random.randrange(len(ready)))
        groups = plan.groups_of(rank)
        if at[rank] == len(groups):
            continue
        group = groups[at[rank]]
        there = waiting.setdefault((group.name, group.index), set())
        there.add(rank)
        if there == set(group.ranks):
            for peer in there:
                at[peer] += 1
            ready += there
    assert set(at.values()) == {len(plan.names)}


@pytest.mark.parametrize(
    ("world_size", "dims", "together", "what"),
    [
        (
            8,
            {"data": 3, "tensor": 2},
            (),
            "3 data x 2 tensor = 6, but there are 8 ranks",
        ),
        (8, {}, (), "nothing = 1, but there are 8 ranks"),
        (0, {"data": 0}, (), "size of at least 1, got 'data': 0"),
        (2, {"a+b": 2}, (), "without '\\+'"),
        (4, {"a": 2, "b": 2}, [("a", "c")], "different dimensions of a, b"),
        (4, {"a": 2, "b": 2}, [("a", "a")], "got \\('a', 'a'\\)"),
        (4, {"a": 2, "b": 2}, [("a",)], "two or more"),
    ],
)
def test_plan_says_what_is_wrong(world_size, dims, together, what):
    with pytest.raises(DistributedError, match=what):
        plan_groups(world_size, dims, together=together)


def test_plan_has_no_such_rank():
    with pytest.raises(DistributedError, match="rank 4 is not in a world of 4"):
        plan_groups(4, {"data": 4}).groups_of(4)


def test_create_groups_needs_a_world():
    with pytest.raises(DistributedError, match="init_process_group first"):
        create_groups({"data": 1})


def test_lazy_gloo_restores_the_environment(monkeypatch):
    name = "TORCH_GLOO_LAZY_INIT"
    monkeypatch.delenv(name, raising=False)
    with lazy_gloo():
        assert os.environ[name] == "1"
    assert name not in os.environ
    monkeypatch.setenv(name, "0")
    with lazy_gloo():
        assert os.environ[name] == "0"
    assert os.environ[name] == "0"


def _create(dims):
    import torch
    import torch.distributed as dist
    from counting_store import CountingStore

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    store = CountingStore(dist.TCPStore("127.0.0.1", port, is_master=False))
    with lazy_gloo():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    before = len(store.operations)
    groups = create_groups(dims, together=[tuple(dims)])
    counts = [o.name for o in store.operations[before:]]
    again = create_groups(dims)  # of the same ranks, and yet others
    sums = {}
    for name, group in [*groups.items(), *again.items()]:
        total = torch.tensor([float(rank)])
        dist.all_reduce(total, group=group)
        sums[name] = total.item()
    dist.barrier()
    dist.destroy_process_group()
    return counts, sums


def test_create_groups_of_real_ranks():
    dims = {"pipeline": 2, "tensor": 3, "data": 1}
    results = run_ranks(_create, 6, dims, process_group=False)
    plan = plan_groups(6, dims, together=[tuple(dims)])
    for rank, (counts, sums) in enumerate(results):
        # One operation a group, one to compare the plans, and none that waits.
        assert counts == ["compare_set", "set", "set", "set", "set"]
        assert sums == {g.name: sum(g.ranks) for g in plan.groups_of(rank)}


def _disagree():
    rank = int(os.environ["RANK"])
    create_groups({"data": 2, "tensor": 1} if rank else {"data": 1, "tensor": 2})


@pytest.mark.slow
def test_create_groups_says_that_ranks_disagree():
    with pytest.raises(RankError, match="all ranks must ask for the same"):
        run_ranks(_disagree, 2)
