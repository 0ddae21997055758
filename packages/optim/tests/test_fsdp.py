"""Steps on sharded parameters equal those in one process."""

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from drivetrain_optim import AGD, LAMB
from drivetrain_testing import run_ranks

OPTIONS = {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True, "delta": 0.01}
PATHS = [{"foreach": False}, {"foreach": True}, {"fused": True}]


def make_agd(params, **path):
    return AGD(params, **OPTIONS, **path)


def make_lamb(params, **path):
    return LAMB(params, lr=0.01, max_grad_norm=0.5, trust_clip=(0.1, 5.0), **path)


def share_of(optimizer):
    return optimizer.adaptive_share() if isinstance(optimizer, AGD) else {}


class Odd(torch.nn.Module):
    """Shapes that do not divide by 2, one of them with a single row."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(3, 5)
        self.last = torch.nn.Linear(5, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def backward(model, step, ranks):
    """Backward of the mean loss over the batches of some ranks."""
    model.zero_grad()
    for rank in ranks:
        generator = torch.Generator().manual_seed(100 * step + rank)
        x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
        (model(x).square().sum() / len(ranks)).backward()


def full(model):
    return {n: p.full_tensor().detach().numpy() for n, p in model.named_parameters()}


def train_sharded(make, path, folder):
    """Trains 6 steps, with a restart from a distributed checkpoint half way."""
    rank = torch.distributed.get_rank()
    model = fully_shard(Odd().double())
    optimizer = make(model.named_parameters(), **path)
    empty = any(p.to_local().numel() == 0 for p in model.parameters())
    for step in range(3):
        backward(model, step, [rank])
        optimizer.step()
    state = {"optim": get_optimizer_state_dict(model, optimizer)}
    dcp.save(state, checkpoint_id=folder)
    model.zero_grad()  # with gradients, nothing would be created to load into
    optimizer = make(model.named_parameters(), **path)
    state = {"optim": get_optimizer_state_dict(model, optimizer)}
    dcp.load(state, checkpoint_id=folder)
    set_optimizer_state_dict(model, optimizer, optim_state_dict=state["optim"])
    sharded = all(isinstance(s["exp_avg"], DTensor) for s in optimizer.state.values())
    for step in range(3, 6):
        backward(model, step, [rank])
        optimizer.step()
    return full(model), share_of(optimizer), sharded, empty


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_agd, make_lamb])
def test_optimizer_under_fsdp2_equals_one_process(make, tmp_path):
    model = Odd().double()
    optimizer = make(model.named_parameters(), foreach=False)
    for step in range(6):
        backward(model, step, [0, 1])
        optimizer.step()
    share = share_of(optimizer)
    assert make is make_lamb or any(0 < value < 1 for value in share.values())

    def all_paths(folder):
        return [
            train_sharded(make, path, f"{folder}/{number}")
            for number, path in enumerate(PATHS)
        ]

    ranks = run_ranks(all_paths, 2, str(tmp_path))
    for by_path in ranks:
        for weights, sharded_share, sharded, _ in by_path:
            assert sharded
            assert sharded_share == share
            for name, p in model.named_parameters():
                np.testing.assert_allclose(
                    weights[name], p.detach().numpy(), rtol=1e-12, atol=1e-14
                )
    assert any(empty for by_path in ranks for *_, empty in by_path)


def count_collectives(path):
    """The number of all-reduces in one step of LAMB with clipping."""
    model = fully_shard(Odd().double())
    optimizer = make_lamb(model.named_parameters(), **path)
    backward(model, 0, [torch.distributed.get_rank()])
    calls = []
    real = torch.distributed.all_reduce
    torch.distributed.all_reduce = lambda *a, **k: (calls.append(a), real(*a, **k))[1]
    try:
        optimizer.step()
    finally:
        torch.distributed.all_reduce = real
    return len(calls), len(list(model.parameters()))


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_lamb_packs_the_norms_of_all_parameters_into_one_all_reduce(path):
    for calls, num_params in run_ranks(count_collectives, 2, path):
        assert num_params > 2
        assert calls == 2  # one for the gradients' norm, one for the trust ratios


def step_with_other_placements():
    """A gradient that is still to be summed or gathered is brought to the weight's."""
    mesh = init_device_mesh("cpu", (2,))
    results = []
    for placement in (Partial(), Replicate(), Shard(1)):
        weight = torch.nn.Parameter(
            DTensor.from_local(torch.zeros(2, 4), mesh, [Shard(0)])
        )
        grad = torch.arange(16.0).reshape(4, 4) - 8
        parts = {Partial(): grad / 2, Replicate(): grad, Shard(1): None}
        local = parts[placement]
        if local is None:
            local = grad.chunk(2, dim=1)[mesh.get_local_rank()].contiguous()
        weight.grad = DTensor.from_local(local, mesh, [placement])
        AGD([weight], lr=0.1, delta=4.0).step()
        results.append(weight.full_tensor().detach().numpy())
    return results


def test_agd_redistributes_gradients_to_the_placement_of_the_weight():
    weight = torch.nn.Parameter(torch.zeros(4, 4))
    weight.grad = torch.arange(16.0).reshape(4, 4) - 8
    AGD([weight], lr=0.1, delta=4.0).step()
    for by_placement in run_ranks(step_with_other_placements, 2):
        for result in by_placement:
            np.testing.assert_array_equal(result, weight.detach().numpy())
