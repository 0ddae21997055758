"""Shards that are no DTensors: norms are refused, and what needs none is right."""

import copy

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from drivetrain_optim import AGD, LAMB, WSAM, UnsupportedTensorError
from drivetrain_testing import run_ranks


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
    )


def train(net, optimizer, part, steps=3):
    """Trains on a part of the same batches."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        rows = torch.randn(8, 6, generator=generator)
        optimizer.zero_grad()
        net(part(rows)).square().mean().backward()
        if isinstance(optimizer, WSAM):
            with optimizer.perturb():
                net(part(rows)).square().mean().backward()
        optimizer.step()


def flat(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


OPTIMIZERS = {
    "AGD": lambda params: AGD(params, lr=0.05),
    "AGD, clipped": lambda params: AGD(params, lr=0.05, max_grad_norm=0.05),
    "LAMB": lambda params: LAMB(params, lr=0.05, weight_decay=0.1),
    "LAMB, not adapting": lambda params: LAMB(
        params, lr=0.05, weight_decay=0.0, adapt="decayed"
    ),
    "WSAM": lambda params: WSAM(AGD(params, lr=0.05), rho=0.3),
    "WSAM, not weighing": lambda params: WSAM(AGD(params, lr=0.05), gamma=0.0),
}
TAKE_NO_NORM = {"AGD", "LAMB, not adapting", "WSAM, not weighing"}


def under_fsdp1(keeps_originals):
    rank = torch.distributed.get_rank()
    found = {}
    for name, make in OPTIMIZERS.items():
        net = FullyShardedDataParallel(
            model(), use_orig_params=keeps_originals, device_id=torch.device("cpu")
        )
        try:
            optimizer = make(net.parameters())
            train(net, optimizer, lambda rows: rows.chunk(2)[rank])
        except UnsupportedTensorError as error:
            found[name] = str(error)
            continue
        with FullyShardedDataParallel.summon_full_params(net):
            found[name] = flat(net)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("keeps_originals", [True, False])
def test_fsdp1_is_right_or_refused(keeps_originals):
    for found in run_ranks(under_fsdp1, 2, keeps_originals):
        for name, make in OPTIMIZERS.items():
            if name in TAKE_NO_NORM:
                whole = model()
                train(whole, make(whole.parameters()), lambda rows: rows)
                expected = flat(whole)
                torch.testing.assert_close(found[name][: len(expected)], expected)
            else:
                assert "a shard of torch's FullyShardedDataParallel" in found[name]
                assert "use fully_shard (FSDP2)" in found[name]


def under_zero(options):
    rank = torch.distributed.get_rank()
    net = DistributedDataParallel(model())
    kind = options.pop("kind")
    # torch's module warns of its own use of what is deprecated.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(net.parameters(), kind, **options)
    try:
        train(net, optimizer, lambda rows: rows.chunk(2)[rank])
    except UnsupportedTensorError as error:
        return str(error)
    return flat(net)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AGD, LAMB])
def test_zero_redundancy_is_right_or_refused(kind):
    options = {"kind": kind, "lr": 0.05, "weight_decay": 0.1}
    whole = model()
    train(whole, kind(whole.parameters(), lr=0.05, weight_decay=0.1), lambda rows: rows)
    for found in run_ranks(under_zero, 2, options):
        torch.testing.assert_close(found, flat(whole))
    for found in run_ranks(under_zero, 2, {**options, "max_grad_norm": 0.1}):
        assert "ZeroRedundancyOptimizer gave this rank a part" in found
        assert "clip_grad_norm_" in found


@pytest.mark.parametrize("mark", ["ds_id", "tensor_model_parallel"])
@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n not in TAKE_NO_NORM])
def test_marked_shard_has_no_norm(mark, name):
    weight = torch.nn.Parameter(torch.ones(4))
    setattr(weight, mark, 0 if mark == "ds_id" else True)
    weight.grad = torch.ones(4)
    before = weight.detach().clone()

    def step():
        OPTIMIZERS[name]([weight]).step()

    with pytest.raises(UnsupportedTensorError, match=r"is a shard of .*; use"):
        step()
    assert torch.equal(weight, before)
    # Megatron says of whole ones that they are none.
    weight.tensor_model_parallel = False
    if mark == "tensor_model_parallel" and name != "WSAM":
        OPTIMIZERS[name]([weight]).step()
        assert not torch.equal(weight, before)


@pytest.mark.parametrize("option", ["max_grad_norm", "check_finite", "capturable"])
@pytest.mark.parametrize("kind", [AGD, LAMB])
def test_state_of_a_version_that_lacked_an_option_has_its_default(kind, option):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([weight], lr=0.1)
    weight.grad = torch.ones(3)
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    del state["param_groups"][0][option]
    again = kind([weight], lr=0.1)
    again.load_state_dict(state)
    assert option not in state["param_groups"][0]
    assert again.param_groups[0][option] == optimizer.param_groups[0][option]
    again.step()


def test_wsam_of_a_version_that_lacked_an_option_goes_on():
    weight = torch.nn.Parameter(torch.ones(3))
    state = WSAM(torch.optim.SGD([weight], lr=0.1), rho=0.2).state_dict()
    del state["param_groups"][0]["wsam_every_k"]
    again = WSAM(torch.optim.SGD([weight], lr=0.1))
    again.load_state_dict(state)
    weight.grad = torch.ones(3)
    with again.perturb():
        weight.sum().backward()
    again.step()
    assert again.param_groups[0]["rho"] == 0.2
