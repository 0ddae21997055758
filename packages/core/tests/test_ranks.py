"""Several ranks: one plan for all, the same numbers as one process, or one error."""

from __future__ import annotations

import itertools
from importlib import import_module

import pytest
import torch
from torch import nn

from drivetrain_core import PlanError, accelerate
from drivetrain_testing import RankError, check_optimization, run_ranks
from drivetrain_testing.programs import Blocks, loader


def losses_of(strategy, kind="list", steps=6, own_loop=False):
    accelerated = accelerate(
        Blocks,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        loader(kind),
        lambda output, batch: nn.functional.mse_loss(output, batch[1]),
        strategy=strategy,
        max_grad_norm=1.0,
        progress=False,
    )
    losses = []
    for batch in itertools.islice(accelerated.batches(), steps):
        loss = accelerated.train_step(batch).clone()
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(loss)
            loss /= torch.distributed.get_world_size()
        losses.append(float(loss))
    names = sorted(name for name, _ in accelerated.module.named_parameters())
    state = accelerated.state_dict()
    accelerated.load_state_dict(state)
    return losses, str(accelerated.plan), names


PLANS = [
    [],
    ["ddp", ("micro_batch", 2)],
    [("fsdp", 2)],
    [("fsdp", 3), ("micro_batch", 2)],
    [("fsdp", 3), "activation_checkpoint"],
]


@pytest.mark.parametrize("strategy", PLANS, ids=str)
def test_ranks_train_like_one_process(strategy):
    alone, _, names = losses_of([])
    results = run_ranks(losses_of, 2, strategy)
    for losses, plan, found in results:
        assert losses == pytest.approx(alone, rel=2e-5)
        assert found == names
        assert ("ddp" in plan) is (not strategy or "ddp" in strategy)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_uneven_ranks_train_like_one_process(kind):
    alone, _, _ = losses_of([])
    for losses, _, _ in run_ranks(losses_of, 3, [kind]):
        assert losses == pytest.approx(alone, rel=2e-5)


@pytest.mark.slow
def test_hybrid_shards_inside_groups():
    alone, _, _ = losses_of([])
    strategy = [("fsdp", {"zero": 3, "shard_size": 2})]
    for losses, plan, _ in run_ranks(losses_of, 4, strategy):
        assert losses == pytest.approx(alone, rel=2e-5)
        assert "shard_size=2" in plan


def test_ranks_share_a_loaders_batches():
    alone, _, _ = losses_of([], "loader", steps=3)
    for losses, _, _ in run_ranks(losses_of, 2, ["ddp"], "loader", 3):
        assert losses == pytest.approx(alone, rel=2e-5)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_bf16_weights_train_on_ranks(kind):
    alone, _, _ = losses_of([("precision", "bf16_params")])
    strategy = [kind, ("precision", "bf16_params")]
    for losses, _, _ in run_ranks(losses_of, 2, strategy):
        assert losses == pytest.approx(alone, rel=5e-2)


def contract(name):
    module = import_module("drivetrain_core._registry")
    check_optimization(module.find(name))
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "fsdp", "micro_batch", "precision"])
def test_contract_holds_on_two_ranks(name):
    assert run_ranks(contract, 2, name) == [True, True]


def apply_bad(rank_that_fails):
    class Failing(nn.Linear):
        def to(self, *args, **kwargs):
            if torch.distributed.get_rank() == rank_that_fails:
                raise RuntimeError("no room here")
            return super().to(*args, **kwargs)

    try:
        accelerate(
            lambda: Failing(4, 1),
            lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            loader("list"),
            lambda output, batch: nn.functional.mse_loss(output, batch[1]),
            strategy=[],
        )
    except Exception as error:  # noqa: BLE001
        return type(error).__name__, str(error)
    return "none", ""


def test_failure_on_one_rank_is_raised_on_all():
    (first, text), (second, own) = run_ranks(apply_bad, 2, 1)
    assert (first, second) == ("DistributedError", "RuntimeError")
    assert "rank 1 failed with RuntimeError: no room here" in text
    assert own == "no room here"


def apply_impossible():
    try:
        losses_of([("fsdp", {"zero": 3, "shard_size": 3})])
    except PlanError as error:
        return str(error)
    return ""


def test_impossible_plan_raises_the_same_on_every_rank():
    results = run_ranks(apply_impossible, 2)
    assert results[0] == results[1]
    assert "shard_size 3 does not divide the 2 ranks" in results[0]
    assert "on rank" not in results[0]


@pytest.mark.slow
def test_ranks_without_a_group_are_told_what_to_call():
    with pytest.raises(RankError, match="init_process_group"):
        run_ranks(losses_of, 2, [], process_group=False)


def own_program(strategy, part):
    """Returns what a rank ends with when one part of its program is its own."""
    rank = torch.distributed.get_rank()
    torch.manual_seed(rank if part == "weights" else 0)
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))
    if part == "model" and rank:
        model.append(nn.Linear(1, 1))
    model.register_buffer("mark", torch.tensor(float(rank)))
    try:
        accelerated = accelerate(
            model,
            lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            [] if part == "data" and rank else loader("list"),
            lambda output, batch: nn.functional.mse_loss(output, batch[1]),
            strategy=strategy,
        )
    except Exception as error:  # noqa: BLE001
        return type(error).__name__, str(error)
    whole = accelerated.module[0].weight
    whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
    return whole.tolist(), float(accelerated.module.mark)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_ranks_with_other_weights_begin_with_those_of_rank_zero(kind):
    torch.manual_seed(0)
    expected = nn.Linear(4, 2).weight.tolist()
    assert run_ranks(own_program, 2, [kind], "weights") == [(expected, 0.0)] * 2


def test_ranks_with_other_models_are_refused():
    for name, text in run_ranks(own_program, 2, ["fsdp"], "model"):
        assert name == "DistributedError"
        assert "must have the same model" in text


def test_rank_without_data_fails_on_all():
    (first, text), (second, own) = run_ranks(own_program, 2, [], "data")
    assert (first, second) == ("DistributedError", "DataExhaustedError")
    assert own in text


def leave_unused(strategy):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x):
            return self.used(x)

    accelerated = accelerate(
        Half,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loader("list"),
        lambda output, batch: nn.functional.mse_loss(output, batch[1]),
        strategy=strategy,
    )
    return [accelerated.train_step(batch).item() for batch in accelerated.loader]


def test_unused_parameters_train_when_ddp_is_told():
    strategy = [("ddp", {"find_unused_parameters": True})]
    first, second = run_ranks(leave_unused, 2, strategy)
    assert len(first) == len(second) == 3


class Placed(nn.Module):
    """Adds places, whose table was transposed at a dimension of size 1, to its input."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)
        table = torch.linspace(0, 1, 12).view(4, 3)
        self.register_buffer("places", table.unsqueeze(0).transpose(0, 1))

    def forward(self, x):
        return self.head(x + self.places[:1, 0])


def train_placed():
    accelerated = accelerate(
        Placed,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        [(torch.ones(4, 3), torch.ones(4, 2))],
        lambda output, batch: nn.functional.mse_loss(output, batch[1]),
        strategy=["ddp"],
        progress=False,
    )
    losses = [float(accelerated.train_step(b)) for b in accelerated.loader]
    return losses, accelerated.module.places.tolist()


def test_ddp_sends_a_buffer_that_was_transposed_at_a_dimension_of_one():
    first, second = run_ranks(train_placed, 2)
    assert first == second
    assert first[1] == Placed().places.tolist()


class Listed(nn.Module):
    """Its blocks are lists of layers, which it calls one by one."""

    def __init__(self):
        super().__init__()
        pairs = [[nn.Linear(3, 3), None, nn.Linear(3, 3)] for _ in range(2)]
        self.layers = nn.ModuleList(nn.ModuleList(pair) for pair in pairs)

    def forward(self, x):
        for first, _, second in self.layers:
            x = x + second(first(x).relu())
        return x


def train_listed(strategy):
    torch.manual_seed(0)
    accelerated = accelerate(
        Listed(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        [(torch.linspace(0, 1, 12).view(4, 3), torch.ones(4, 3))] * 3,
        lambda output, batch: nn.functional.mse_loss(output, batch[1]),
        strategy=strategy,
        progress=False,
    )
    loss = [accelerated.train_step(b) for b in accelerated.loader][-1]
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(loss)
        loss /= torch.distributed.get_world_size()
    kinds = [type(m).__name__ for m in accelerated.module.layers[0].children()]
    return float(loss), kinds


def test_blocks_that_are_lists_are_sharded_by_what_they_hold():
    expected, _ = train_listed([])
    for loss, kinds in run_ranks(train_listed, 2, ["fsdp"]):
        assert loss == pytest.approx(expected, rel=1e-5)
        assert kinds == ["FSDPLinear", "FSDPLinear"]
