"""Unchanged DDP modules over tuned groups learn what they would learn over Gloo."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from drivetrain_comm.backend import _native
from drivetrain_testing import run_ranks

pytestmark = pytest.mark.skipif(
    _native.missing_because() is not None, reason=str(_native.missing_because())
)


def fusion_of(ddp):
    from drivetrain_comm import _enable

    return _enable._fusions.get(ddp.reducer)


def model_of(kind):
    torch.manual_seed(0)
    if kind == "unused":
        return Branches()
    layers = [torch.nn.Linear(16, 16) for _ in range(6)]
    if kind == "frozen":
        layers[2].requires_grad_(False)
    if kind == "batch_norm":
        layers.insert(3, torch.nn.BatchNorm1d(16))
    return torch.nn.Sequential(*layers)


class Branches(torch.nn.Module):
    """Each step uses one of two layers."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 16)
        self.branches = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(2))
        self.turn = 0

    def forward(self, x):
        self.turn += 1
        return self.branches[self.turn % 2](self.first(x))


def train(kind, settings, num_steps=8):
    """Trains a model in double precision; settings of None mean stock DDP."""
    from torch.nn.parallel import DistributedDataParallel

    from drivetrain_comm import _enable

    rank = int(os.environ["RANK"])
    os.environ["DRIVETRAIN_COMM_HOST"] = str(rank // 2)
    if settings is not None:
        _enable.enable(**settings)
    # One world after the other: what ranks tell each other must not be mixed up.
    place = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(kind, place),
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    options = {
        "unused": {"find_unused_parameters": True},
        "views": {"gradient_as_bucket_view": True},
        "static": {"static_graph": True},
        "cap": {"bucket_cap_mb": 1},
    }.get(kind, {})
    model = model_of(kind).double()
    ddp = DistributedDataParallel(model, **options)
    if kind == "own_hook":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
            allreduce_hook,
        )

        ddp.register_comm_hook(None, allreduce_hook)
    forward = torch.compile(ddp, backend="eager") if kind == "compiled" else ddp
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(num_steps):
        x = torch.rand(8, 16, generator=generator, dtype=torch.float64)
        if kind == "no_sync" and step % 2:
            with ddp.no_sync():
                forward(x).square().mean().backward()
            continue
        loss = forward(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    state = torch.cat([p.detach().flatten() for p in model.parameters()])
    fusion = fusion_of(ddp)
    phase = fusion.tuner.phase if fusion and fusion.tuner else None
    dist.barrier()
    dist.destroy_process_group()
    # A group that is freed while a thread of Gloo still frees a tensor waits for it with
    # the GIL held, which that thread needs.
    time.sleep(0.1)
    return losses, state, phase


KINDS = [
    "plain",
    "unused",
    "frozen",
    "batch_norm",
    "views",
    "static",
    "cap",
    "own_hook",
    "no_sync",
    "compiled",
]


def all_kinds(settings):
    """Trains each kind in one world of processes."""
    return {kind: train(kind, settings) for kind in KINDS}


@pytest.fixture(scope="module")
def stock():
    return run_ranks(all_kinds, 4, None, process_group=False, timeout_s=120)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param(
            {"algorithm": "ring", "bucket_mb": 0.001}, marks=pytest.mark.faults
        ),
    ],
)
def test_training_is_that_of_stock_ddp(settings, stock):
    tuned = run_ranks(all_kinds, 4, settings, process_group=False, timeout_s=120)
    for kind in KINDS:
        states = [found[kind][1] for found in tuned]
        if kind != "batch_norm":
            assert all(torch.equal(state, states[0]) for state in states), kind
        for ours, theirs in zip(tuned, stock, strict=True):
            difference = (ours[kind][1] - theirs[kind][1]).abs().max().item()
            assert difference < 1e-12, kind
        assert theirs[kind][2] is None
        assert (ours[kind][2] is None) == (kind == "own_hook"), kind


def long_training(num_steps):
    import logging

    records = []

    class Keep(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())

    logging.getLogger("drivetrain_comm").addHandler(Keep())
    logging.getLogger("drivetrain_comm").setLevel(logging.INFO)
    losses, state, phase = train("plain", {}, num_steps)
    return losses, state, phase, records


@pytest.mark.slow
def test_tuner_has_committed_after_fifty_steps():
    found = run_ranks(long_training, 4, 52, process_group=False, timeout_s=120)
    assert {phase for _, _, phase, _ in found} == {"committed"}
    assert any("gradients are reduced by" in text for text in found[0][3])
    states = [state for _, state, _, _ in found]
    assert all(torch.equal(state, states[0]) for state in states)


def stock_wins(kind, bucket_bytes):
    """Trains where torch's own backend is the only candidate."""
    from drivetrain_comm.ddp._ddp_tuner import DdpTuner
    from drivetrain_comm.ddp._reduction_plan import ReductionPlan
    from drivetrain_comm.selection._choice import Choice

    plan = ReductionPlan(bucket_bytes=bucket_bytes, choice=Choice(algorithm="stock"))
    DdpTuner._predict = lambda _, __: [(plan, 1.0)]
    return train(kind, {}, 12)


def stock_wins_with_buckets_of(sizes):
    found = [train("plain", None, 12)]
    return found + [stock_wins(f"stock-{size}", size) for size in sizes]


@pytest.mark.slow
def test_torchs_own_backend_may_win_the_trial():
    sizes = (1, 3000, 1 << 40)
    ranks = run_ranks(stock_wins_with_buckets_of, 4, sizes, process_group=False)
    for (_, wanted, _), *found in ranks:
        assert [phase for _, _, phase in found] == ["committed"] * len(sizes)
        for (_, ours, _), (_, first, _) in zip(found, ranks[0][1:], strict=True):
            assert torch.equal(ours, first)
            assert torch.allclose(ours, wanted, rtol=0, atol=1e-12)


def leaves_while_stock_reduces():
    """The last rank goes in mid-training; returns what each is told."""

    class Leaves(torch.nn.Linear):
        def forward(self, x):
            self.turn = getattr(self, "turn", 0) + 1
            if self.turn == 9 and os.environ["RANK"] == "1":
                raise KeyError("left")
            return super().forward(x)

    globals()["model_of"] = lambda _: Leaves(16, 16)
    try:
        stock_wins("leaves", 1)
    except (KeyError, RuntimeError) as error:
        return f"{type(error).__name__} {error}"
    return ""


def test_rank_that_leaves_while_stock_reduces_is_no_hang():
    told, left = run_ranks(leaves_while_stock_reduces, 2, process_group=False)
    assert left == "KeyError 'left'"
    assert "Error" in told


def averaged_halves(kind):
    """Returns an average that sixteen bits hold, of gradients whose sum they do not."""
    from torch.nn.parallel import DistributedDataParallel

    from drivetrain_comm import _enable
    from drivetrain_comm.ddp._ddp_tuner import DdpTuner
    from drivetrain_comm.ddp._reduction_plan import stock_plan

    _enable.enable(cache=False)
    DdpTuner._cold = lambda tuner: stock_plan(tuner._group.settings)
    dist.init_process_group("gloo")
    ddp = DistributedDataParallel(torch.nn.Linear(8, 8).half())
    found = []
    with ddp.join(divide_by_initial_world_size=kind != "active"):
        for _ in range(2):
            ddp.zero_grad()
            (ddp(torch.ones(1, 8).half()) * 40000).sum().backward()
            found += [p.grad.tolist() for p in ddp.parameters()]
    dist.barrier()
    dist.destroy_process_group()
    return found == [[[40000.0] * 8] * 8, [40000.0] * 8] * 2


@pytest.mark.parametrize("kind", ["stock", "active"])
def test_gradients_are_scaled_before_their_sum(kind):
    assert run_ranks(averaged_halves, 2, kind, process_group=False) == [True, True]


def joins():
    from torch.nn.parallel import DistributedDataParallel

    from drivetrain_comm import _enable

    rank = int(os.environ["RANK"])
    _enable.enable()
    dist.init_process_group("gloo")
    model = model_of("plain").double()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    with ddp.join():
        for _ in range(3 + rank):
            ddp(torch.ones(2, 16, dtype=torch.float64)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    state = torch.cat([p.detach().flatten() for p in model.parameters()])
    dist.destroy_process_group()
    return state


def test_ranks_with_fewer_batches_can_join():
    found = run_ranks(joins, 2, process_group=False)
    assert torch.equal(found[0], found[1])


def long_twice():
    import json
    from pathlib import Path

    first = train("first", {}, 52)
    second = train("second", {}, 10)
    folder = Path(os.environ["DRIVETRAIN_COMM_CACHE"])
    files = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    return first[2], second[2], files


def test_second_run_on_the_same_hosts_starts_with_what_was_found():
    found = run_ranks(long_twice, 2, process_group=False, timeout_s=120)
    first, second, files = found[0]
    assert (first, second) == ("committed", "committed")
    assert len(files) == 1
    assert files[0]["tactic"]["choice"]["algorithm"] in {"direct", "stock"}


def copies_and_looks_first():
    import copy
    import io

    from torch.nn.parallel import DistributedDataParallel

    from drivetrain_comm import _enable

    _enable.enable()
    dist.init_process_group("gloo")
    ddp = DistributedDataParallel(model_of("plain"))
    if dist.get_rank() == 0:
        with torch.no_grad():
            ddp(torch.ones(2, 16))
    for _ in range(2):
        ddp(torch.ones(2, 16)).mean().backward()
    twin = copy.deepcopy(ddp)
    assert fusion_of(ddp)
    twin(torch.ones(2, 16)).mean().backward()
    assert fusion_of(twin)
    assert fusion_of(twin) is not fusion_of(ddp)
    file = io.BytesIO()
    torch.save(ddp, file)
    names = list(ddp.state_dict())
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.1)
    return names


def test_module_can_be_copied_and_used_on_one_rank_alone():
    found = run_ranks(copies_and_looks_first, 2, process_group=False)
    assert found[0][0] == "module.0.weight"


def reduces_what_lies_apart():
    from drivetrain_comm import _enable

    _enable.enable(algorithm="ring")
    dist.init_process_group("gloo")
    whole = torch.arange(12.0).reshape(3, 4)
    mine = whole.t() if dist.get_rank() == 0 else whole.t().contiguous()
    dist.all_reduce(mine)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.1)
    return mine.contiguous()


def test_ranks_may_lay_tensors_out_differently():
    found = run_ranks(reduces_what_lies_apart, 2, process_group=False)
    wanted = 2 * torch.arange(12.0).reshape(3, 4).t()
    assert all(torch.equal(one, wanted) for one in found)


FIXED = ["stock", "ring", "halving", "hierarchical-ring"]


def trains_with_each_fixed():
    found = {}
    for name in FIXED:
        _, state, phase = train(f"fixed-{name}", {"algorithm": name})
        found[name] = state, phase
    return found


def test_algorithm_can_be_fixed_where_others_would_do_as_well():
    # Between two ranks of one host all of them are the same exchange.
    found = run_ranks(trains_with_each_fixed, 2, process_group=False, timeout_s=90)
    for ranks in zip(*(one.items() for one in found), strict=True):
        (name, (state, phase)), (_, (other, _)) = ranks
        assert torch.equal(state, other), name
        assert (phase is None) == (name == "stock"), name
        assert torch.allclose(state, found[0]["stock"][0], rtol=0, atol=1e-12), name
