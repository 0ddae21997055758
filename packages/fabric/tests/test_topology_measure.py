"""Links between ranks are measured over Gloo, and all ranks see the same numbers."""

from datetime import timedelta

import pytest
import torch.distributed as dist

from drivetrain_core import DistributedError
from drivetrain_core.services import destroy_process_group, init_process_group
from drivetrain_fabric.topology import measure_links
from drivetrain_testing import run_ranks


@pytest.fixture
def alone():
    """A world of this process alone."""
    init_process_group()
    yield
    destroy_process_group()


def measure(ranks=None):
    return measure_links(budget_s=0.3, ranks=ranks)


@pytest.mark.parametrize("world_size", [2, 3])
def test_all_ranks_see_the_same_positive_numbers(world_size):
    results = run_ranks(measure, world_size)
    matrix = results[0]
    assert results == [matrix] * world_size
    assert matrix.ranks == tuple(range(world_size))
    for a, b in matrix.pairs():
        assert matrix.delay_s[a][b] == matrix.delay_s[b][a] > 0
        assert matrix.bytes_per_s[a][b] > 0


def test_some_ranks_are_measured_and_all_see_them():
    results = run_ranks(measure, 3, (2, 0))
    assert results == [results[0]] * 3
    assert results[0].ranks == (0, 2)
    assert len(results[0]) == 2


def in_a_part():
    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        return None
    return measure_links(group, budget_s=0.2)


def test_ranks_are_those_of_the_group():
    nothing, first, second = run_ranks(in_a_part, 3)
    assert nothing is None
    assert first == second
    assert first.ranks == (0, 1)


def one_stays_away():
    group = dist.new_group(timeout=timedelta(seconds=1))
    if dist.get_rank() == 1:
        return ""
    try:
        measure_links(group, budget_s=0.2)
    except DistributedError as error:
        return str(error)


@pytest.mark.slow
def test_rank_that_does_not_come_is_named():
    message, _ = run_ranks(one_stays_away, 2)
    assert message.startswith("rank 0 has lost rank 1 of 2: ")


def test_without_a_process_group_is_an_error():
    with pytest.raises(DistributedError, match="no process group: call init"):
        measure_links()


@pytest.mark.parametrize("ranks", [[], [1], [0, 0], [-1]])
def test_ranks_that_there_are_not_are_refused(alone, ranks):
    with pytest.raises(
        DistributedError, match="ranks must be different ones from 0 to 0"
    ):
        measure_links(ranks=ranks)


@pytest.mark.parametrize("budget_s", [0, -1, float("nan"), float("inf")])
def test_budget_must_be_some_seconds(alone, budget_s):
    with pytest.raises(DistributedError, match="budget_s must be more than 0"):
        measure_links(budget_s=budget_s)


def test_group_without_a_backend_for_the_cpu_is_refused(alone, monkeypatch):
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cuda:nccl")
    with pytest.raises(DistributedError, match=r"no backend for the CPU but cuda:nccl"):
        measure_links()
