"""Compressed gradients are near the exact ones, and equal on all ranks."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from drivetrain_comm.backend import _native
from drivetrain_comm.ddp._low_rank import LowRank, orthogonalize, saves
from drivetrain_testing import RankError, run_ranks

needs_engine = pytest.mark.skipif(
    _native.missing_because() is not None, reason=str(_native.missing_because())
)


def fusion_of(ddp):
    from drivetrain_comm import _enable

    return _enable._fusions.get(ddp.reducer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7, 3), (1, 1), (5, 5), (3, 6)])
def test_orthogonalize_gives_orthonormal_columns_or_zeros(dtype, shape):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) * 1e-8
    orthogonalize(x)
    products = x.T @ x
    expected = torch.zeros(shape[1], shape[1], dtype=dtype)
    expected.diagonal()[: min(shape)] = 1
    assert torch.allclose(products, expected, atol=1e-5)


def test_orthogonalize_keeps_what_is_not_finite():
    x = torch.tensor([[float("nan"), 1.0], [1.0, 1.0]])
    orthogonalize(x)
    assert not x.isfinite().all()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((64, 64), True), ((4, 64), False), ((64,), False), ((0, 9), False), ((), False)],
)
def test_saves(shape, expected):
    assert saves(torch.Size(shape), 4) == expected


def exchange(states, gradients):
    """Carries a step out as ranks would."""
    ps = [s.project(g) for s, g in zip(states, gradients, strict=True)]
    mean = torch.stack(ps).mean(0)
    for p in ps:
        p.copy_(mean)
    qs = [s.project_back() for s in states]
    mean = torch.stack(qs).mean(0)
    for q in qs:
        q.copy_(mean)
    for s, g in zip(states, gradients, strict=True):
        s.restore(g)


def make_states(like, rank, num=2):
    return [LowRank(like, rank=rank, seed=3) for _ in range(num)]


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (4, 3, 2)])
def test_full_rank_is_the_exact_average(shape):
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(shape, generator=generator) for _ in range(2)]
    expected = torch.stack(gradients).mean(0)
    states = make_states(gradients[0], rank=min(shape[0], expected[0].numel()))
    exchange(states, gradients)
    for state, gradient in zip(states, gradients, strict=True):
        assert torch.allclose(gradient, expected, atol=1e-5)
        assert torch.equal(state.q, states[0].q)


def test_error_feedback_loses_nothing_in_the_long_run():
    generator = torch.Generator().manual_seed(2)
    signals = [torch.randn(16, 12, generator=generator).double() for _ in range(2)]
    states = make_states(signals[0], rank=2)
    sent, num_steps = torch.zeros_like(signals[0]), 400
    for step in range(num_steps):
        gradients = [signal.clone() for signal in signals]
        exchange(states, gradients)
        assert torch.equal(gradients[0], gradients[1])
        sent += gradients[0]
        owed = torch.stack([state.error for state in states]).mean(0)
        total = torch.stack(signals).mean(0) * (step + 1)
        assert torch.allclose(sent + owed, total, atol=1e-9)
    mean = torch.stack(signals).mean(0)
    assert (sent / num_steps - mean).norm() < 0.05 * mean.norm()


def test_gradients_that_are_not_finite_do_not_spoil_later_steps():
    states = make_states(torch.empty(5, 4), rank=2)
    bad = [torch.full((5, 4), float("inf")), torch.ones(5, 4)]
    exchange(states, bad)
    assert not bad[0].isfinite().all()
    good = [torch.ones(5, 4), torch.ones(5, 4)]
    exchange(states, good)
    assert torch.allclose(good[0], torch.ones(5, 4), atol=1e-5)


def test_gradients_of_zero_do_not_end_the_approximation():
    states = make_states(torch.empty(5, 4), rank=2)
    exchange(states, [torch.zeros(5, 4), torch.zeros(5, 4)])
    gradients = [torch.ones(5, 4), torch.ones(5, 4)]
    exchange(states, gradients)
    assert torch.allclose(gradients[0], torch.ones(5, 4), atol=1e-5)
    assert torch.equal(states[0].q, states[1].q)


def train(settings, dtype=torch.float32, num_steps=30):
    """Fits a linear map with a small network; returns losses, parameters, the hook."""
    from torch.nn.parallel import DistributedDataParallel

    from drivetrain_comm import _enable

    rank = int(os.environ["RANK"])
    os.environ["DRIVETRAIN_COMM_HOST"] = str(rank // 2)
    if settings is not None:
        _enable.enable(**settings)
    place = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    size = int(os.environ["WORLD_SIZE"])
    name = f"{settings} {dtype}"
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(name, place), rank=rank, world_size=size
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 48), torch.nn.Tanh(), torch.nn.Linear(48, 32)
    ).to(dtype)
    truth = torch.randn(32, 32).to(dtype) / 6
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5, momentum=0.8)
    generator = torch.Generator().manual_seed(rank)
    losses, gradients = [], None
    for _ in range(num_steps):
        x = torch.randn(64, 32, generator=generator).to(dtype)
        loss = (ddp(x) - x @ truth).square().mean()
        loss.backward()
        if gradients is None:
            gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    state = torch.cat([p.detach().flatten() for p in model.parameters()])
    fusion = fusion_of(ddp)
    compressor = fusion.compressor if fusion else None
    qs = [s.q for s in getattr(compressor, "states", {}).values()]
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.1)
    return {
        "losses": losses,
        "gradients": gradients,
        "state": state,
        "kind": type(compressor).__name__,
        "qs": qs,
    }


def train_all(all_settings, dtype, num_steps):
    return [train(settings, dtype, num_steps) for settings in all_settings]


@pytest.mark.slow
@needs_engine
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        pytest.param(torch.float64, marks=pytest.mark.faults),
        torch.bfloat16,
    ],
)
def test_casts_are_stock_within_rounding(dtype):
    kinds = [None, {"compression": "fp16"}, {"compression": "bf16"}]
    found = run_ranks(train_all, 4, kinds, dtype, 3, process_group=False, timeout_s=120)
    for stock, half, brain in found:
        assert (stock["kind"], half["kind"]) == ("NoneType", "Cast")
        most = stock["gradients"].abs().max()
        for got, rounding in ((half, 2**-10), (brain, 2**-7)):
            off = (got["gradients"] - stock["gradients"]).abs().max() / most
            coarse = 2**-7 if dtype == torch.bfloat16 else rounding
            assert off < 4 * coarse
            if dtype != torch.bfloat16:
                assert off > 0
    for at in (1, 2):
        states = [one[at]["state"] for one in found]
        assert all(torch.equal(state, states[0]) for state in states)


@pytest.mark.slow
@needs_engine
@pytest.mark.parametrize("world_size", [2, 4])
def test_powersgd_converges_and_ranks_agree_bit_by_bit(world_size):
    settings = {"compression": "powersgd", "powersgd_start_after": 5}
    found = run_ranks(
        train_all,
        world_size,
        [None, settings],
        torch.float32,
        150,
        process_group=False,
        timeout_s=150,
    )
    first = found[0][1]
    assert first["kind"] == "PowerSGD"
    assert len(first["qs"]) == 2
    for stock, ours in found:
        assert torch.allclose(ours["gradients"], stock["gradients"], atol=1e-6)
        assert torch.equal(ours["state"], first["state"])
        for q, other in zip(ours["qs"], first["qs"], strict=True):
            assert torch.equal(q, other)
        assert not torch.equal(ours["state"], stock["state"])
        begin, end = stock["losses"][0], stock["losses"][-1]
        assert end < begin / 10
        assert ours["losses"][-1] < begin / 8


def fails_on_one_rank():
    from drivetrain_comm import _enable
    from drivetrain_comm.ddp import _low_rank

    _enable.enable(compression="powersgd", powersgd_start_after=1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
    ddp(torch.ones(2, 32)).sum().backward()
    if rank == 1:

        def no_memory(self):
            message = "out of memory"
            raise RuntimeError(message)

        _low_rank.LowRank.project_back = no_memory
    start = time.monotonic()
    try:
        for _ in range(2):
            ddp(torch.ones(2, 32)).sum().backward()
    except RuntimeError as error:
        said = str(error)
    else:
        said = ""
    # The others are given the time to say what they saw.
    time.sleep(1)
    return said, time.monotonic() - start


@pytest.mark.slow
@needs_engine
def test_rank_that_fails_in_powersgd_fails_all():
    found = run_ranks(fails_on_one_rank, 3, process_group=False)
    assert all("out of memory" in said for said, _ in found)
    assert all(seconds < 20 for _, seconds in found)


def compresses_with_own_hook():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    from drivetrain_comm import _enable

    _enable.enable(compression="fp16")
    dist.init_process_group("gloo")
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    ddp.register_comm_hook(None, allreduce_hook)
    ddp(torch.ones(1, 2))


@pytest.mark.slow
@needs_engine
def test_compression_is_never_dropped_silently():
    with pytest.raises(RankError, match="cannot be compressed by fp16"):
        run_ranks(compresses_with_own_hook, 2, process_group=False)


def train_mixed():
    from drivetrain_comm import _enable

    _enable.enable(bucket_mb=64)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    double, single = torch.nn.Linear(3, 4).double(), torch.nn.Linear(4, 3)

    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.narrow = double, single

        def forward(self, x):
            return self.narrow(self.wide(x).float())

    ddp = torch.nn.parallel.DistributedDataParallel(Mixed())
    found = []
    for _ in range(3):
        ddp.zero_grad()
        x = torch.full((2, 3), 1.0 + dist.get_rank(), dtype=torch.float64)
        ddp(x).sum().backward()
        found.append(single.bias.grad.tolist() + double.weight.grad[0].tolist())
    expected = single.weight.detach().sum(0)[0].double().item() * 2 * 1.5
    dist.destroy_process_group()
    time.sleep(0.1)
    return found, expected


@needs_engine
def test_gradients_of_two_dtypes_are_never_one_message():
    found = run_ranks(train_mixed, 2, process_group=False)
    for gradients, expected in found:
        assert gradients == [gradients[0]] * 3
        assert gradients[0] == pytest.approx([2.0] * 3 + [expected] * 3, rel=1e-6)
