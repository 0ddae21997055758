"""Ranks compare their parameters: what differs is named, and what is rounding is not."""

import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from drivetrain_core import ProgramError
from drivetrain_elastic._membership._world_group import RankLostError
from drivetrain_elastic._training._comparison import is_compared, require_alike

CPU = torch.device("cpu")


def compare(*ranks):
    """Compares parameters of ranks, in threads; returns what each has raised, or None."""
    store = dist.HashStore()

    def one(rank):
        group = dist.ProcessGroupGloo(
            dist.PrefixStore("ranks", store), rank, len(ranks), timedelta(seconds=30)
        )
        try:
            require_alike(ranks[rank].items(), group, CPU, 7)
        except Exception as error:  # noqa: BLE001 - it is what is looked at
            return error
        return None

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(one, range(len(ranks))))


def parameters():
    torch.manual_seed(0)
    return {
        "a": torch.nn.Parameter(torch.rand(3, 5)),
        "b": torch.nn.Parameter(torch.rand(4).to(torch.bfloat16)),
        "c": torch.nn.Parameter(torch.rand(2, dtype=torch.complex64)),
        "d": torch.nn.Parameter(torch.rand(0)),
        "e": torch.nn.Parameter(torch.rand(3, 4).t()),
        "f": torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64)),
    }


def test_what_is_the_same_is_passed():
    assert compare(parameters(), parameters(), parameters()) == [None] * 3


def test_values_that_are_no_numbers_are_the_same_as_themselves():
    ranks = [parameters(), parameters()]
    for one in ranks:
        with torch.no_grad():
            one["a"][0, 0] = torch.nan
    assert compare(*ranks) == [None, None]


@pytest.mark.parametrize("name", ["a", "b", "c", "e", "f"])
@pytest.mark.parametrize("rank", [0, 2])
def test_what_differs_is_named_on_all_ranks(name, rank):
    ranks = [parameters(), parameters(), parameters()]
    with torch.no_grad():
        ranks[rank][name].mul_(1.5)
    errors = compare(*ranks)
    for error in errors:
        assert isinstance(error, ProgramError)
        assert str(error).startswith(f"after step 7, {name!r} is not the same on all")


def test_number_on_one_rank_alone_is_a_difference():
    ranks = [parameters(), parameters()]
    with torch.no_grad():
        ranks[1]["a"][1, 2] = torch.nan
    assert all(isinstance(error, ProgramError) for error in compare(*ranks))


def test_rounding_is_told_and_goes_on(caplog):
    ranks = [parameters(), parameters()]
    with torch.no_grad():
        ranks[1]["e"].mul_(1 + 1e-6)
    with caplog.at_level(logging.WARNING):
        assert compare(*ranks) == [None, None]
    assert "after step 7, 'e' differs by" in caplog.text


def test_rank_that_does_not_come_is_a_lost_one():
    group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=5))

    class Lost:
        def allreduce(self, *_):
            message = "Connection closed by peer"
            raise RuntimeError(message)

    require_alike(parameters().items(), group, CPU, 1)
    with pytest.raises(RankLostError):
        require_alike(parameters().items(), Lost(), CPU, 1)


def test_first_steps_and_every_hundredth_are_compared():
    assert [step for step in range(1, 250) if is_compared(step)] == [1, 10, 100, 200]
